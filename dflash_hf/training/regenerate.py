"""The target answers prompts greedily, in batches, and its tapped layers are written down on the way.

A drafter is trained on what its target says, not on what a data set says. Taps are taken while the answer is being
made, so no second pass over the text is needed. A batch is one shard; finished shards are skipped on a second start.
Shapes: B rows still answering, L taps.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import DynamicCache

from dflash_hf.errors import TrainingError
from dflash_hf.target.host import cache_key
from dflash_hf.target.taps import TapRecorder
from dflash_hf.target.view import TargetView
from dflash_hf.training.documents import DESCRIPTION

__all__ = ["Answer", "answer_batch", "regenerate"]


@dataclass(slots=True)
class Answer:
    """One prompt and what the target said."""

    ids: list[int]
    prompt_length: int
    taps: list[Tensor]  # pieces [c, L * width], in order; every token but the last

    def tensors(self, number: int) -> dict[str, Tensor]:
        """This answer as a shard stores it (``training.documents``)."""
        return {
            f"{number}.ids": torch.tensor(self.ids),
            f"{number}.prompt": torch.tensor(self.prompt_length),
            f"{number}.taps": torch.cat(self.taps),
        }


def regenerate(
    view: TargetView,
    prompts: Sequence[Sequence[int]],
    folder: str | Path,
    layer_ids: Sequence[int],
    *,
    eos_ids: Sequence[int],
    max_new_tokens: int = 256,
    batch_size: int = 32,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Answer every prompt (token ids, chat template applied) and write shards into ``folder``.

    Batches are of like length and in a shuffled order, so that any first part of the work is a fair sample.

    Raises:
        TrainingError: a prompt is empty, or the folder holds answers made otherwise.
    """
    if empty := [number for number, prompt in enumerate(prompts) if not len(prompt)]:
        raise TrainingError(f"prompts {empty[:5]} are empty")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _describe(folder, view, list(layer_ids), max_new_tokens, len(prompts), batch_size)
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    random.Random(0).shuffle(batches)
    for done, batch in enumerate(batches):
        path = folder / f"answers-{done:05d}.safetensors"
        if not path.exists():
            answers = answer_batch(view, [prompts[number] for number in batch], layer_ids, eos_ids, max_new_tokens)
            tensors: dict[str, Tensor] = {}
            for number, answer in zip(batch, answers, strict=True):
                tensors.update(answer.tensors(number))
            save_file(tensors, path.with_suffix(".partial"))
            os.replace(path.with_suffix(".partial"), path)
        progress(done + 1, len(batches))


def _describe(
    folder: Path, view: TargetView, layer_ids: list[int], max_new_tokens: int, prompts: int, batch_size: int
) -> None:
    description = {
        "target": view.public_name,
        "layer_ids": layer_ids,
        "tap_width": view.hidden_size,
        "decoding": "greedy",
        "max_new_tokens": max_new_tokens,
        "prompts": prompts,
        "batch_size": batch_size,
    }
    path = folder / DESCRIPTION
    if path.exists() and (found := json.loads(path.read_text(encoding="utf-8"))) != description:
        changed = [key for key, value in description.items() if found.get(key) != value]
        raise TrainingError(f"{folder} holds answers made with another {', '.join(changed)}; choose another folder")
    path.write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def answer_batch(
    view: TargetView, prompts: Sequence[Sequence[int]], layer_ids: Sequence[int], eos_ids: Sequence[int], most: int
) -> list[Answer]:
    """Greedy answers of at most ``most`` tokens, each ending with its end-of-text id unless it was cut."""
    answers = [Answer(list(prompt), len(prompt), []) for prompt in prompts]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    rows = list(range(len(prompts)))
    cache, caught = DynamicCache(config=view.model.config), []
    with TapRecorder(view, list(layer_ids)) as recorder:
        for _ in range(most):
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            with recorder.listen(lambda taps, _positions: caught.append(taps.to(torch.bfloat16))):
                logits = _forward(view, ids, mask, positions, cache)
            taps, real = caught.pop(), mask[:, -ids.shape[1] :].bool()
            chosen = logits.argmax(dim=-1)
            for row, answer in enumerate(rows):
                answers[answer].taps.append(taps[row, real[row]])
                answers[answer].ids.append(int(chosen[row]))
            going = [row for row in range(len(rows)) if int(chosen[row]) not in eos_ids]
            if not going:
                break
            if len(going) < len(rows):
                keep = torch.tensor(going)
                cache.batch_select_indices(keep)
                mask, chosen, rows = mask[keep], chosen[keep], [rows[row] for row in going]
            ids, mask = chosen[:, None], torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
    return answers


def _forward(view: TargetView, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
    """Logits [B, V] of the newest token."""
    device = view.model.device
    output = view.model(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        position_ids=positions.to(device),
        logits_to_keep=1,
        **{cache_key(view.model): cache},
    )
    return output.logits[:, -1].cpu()
