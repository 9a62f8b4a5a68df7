"""What both sides get: a tiny random target, drafters' weights, rounds of taps; and our side's drafts of them.

Shapes: V = 320 ids, width 64, 8 target layers, 3 drafter layers, blocks of 8.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.target.view import view_target
from tests.parity.table import Drafted

__all__ = [
    "BLOCK",
    "MASK",
    "SHAPE",
    "TAPS",
    "VOCAB",
    "WIDTH",
    "WINDOW",
    "Round",
    "layer_types",
    "ours",
    "plain_text",
    "prompt",
    "quiet",
    "randomise",
    "rounds_of",
    "spoken",
    "tiny_target",
]

VOCAB, WIDTH, BLOCK, MASK, WINDOW, TAPS = 320, 64, 8, 311, 16, [1, 3, 6]
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
_PROMPTS, _ACCEPTED, _SPARE = (6, 12, 40), (0, 2, 7, 1), BLOCK + 2
_KINDS = {"f": "full_attention", "s": "sliding_attention"}


@dataclass(frozen=True)
class Round:
    """One round of drafting: what is new since the last one, and the anchor."""

    anchor: Tensor  # [1, 1] id
    position: int  # of the anchor; the rows' positions end right before it
    taps: Tensor  # [1, new rows, taps x width]


def quiet() -> None:
    """No progress bars and no advice on the host's renamed arguments, which the authors' code still uses."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def layer_types(kinds: str) -> list[str]:
    """``"ssf"`` written out."""
    return [_KINDS[kind] for kind in kinds]


def tiny_target(seed: int = 0, *, winners: int | None = None) -> PreTrainedModel:
    """A Qwen3 of 8 layers. ``winners``: only so many ids have a loud row in the head, so that some drafts are kept."""
    target = Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_hidden_layers=8)).eval().float()
    randomise(target, seed)
    if winners is not None:
        with torch.no_grad():
            target.lm_head.weight[winners:] *= 0.02
    target.generation_config.eos_token_id = None
    target.generation_config.pad_token_id = 0
    return target


def randomise(model: nn.Module, seed: int) -> None:
    """Weights wide enough that every part of the network shows in the result."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "norm" in name:
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                loud = "embed_tokens" in name or "markov_w1" in name
                quiet = "kernel_projection" in name or "joint_proj" in name  # louder, rounding alone reaches 1e-4
                parameter.normal_(0.0, 1.0 if loud else 0.1 if quiet else 0.3, generator=generator)


def prompt(seed: int, length: int) -> Tensor:
    return torch.randint(0, 300, (1, length), generator=torch.Generator().manual_seed(1000 + seed))


@torch.no_grad()
def rounds_of(target: PreTrainedModel, seed: int, taps: list[int] = TAPS) -> Iterator[tuple[list[Round], Tensor]]:
    """Per prompt length: rounds as if 0, 2, 7 and 1 drafts had been accepted, and the taps [1, S, ...] of it all."""
    for length in _PROMPTS:
        ids = prompt(seed + length, length + sum(_ACCEPTED) + len(_ACCEPTED) + _SPARE)
        states = target(ids, output_hidden_states=True).hidden_states
        whole = torch.cat([states[layer + 1] for layer in taps], dim=-1)
        rounds, held, position = list[Round](), 0, length
        for accepted in (*_ACCEPTED, 0):
            rounds.append(Round(ids[:, position : position + 1], position, whole[:, held:position]))
            held, position = position, position + accepted + 1
        yield rounds, whole


@torch.no_grad()
def ours(drafter: DFlashDrafter, target: PreTrainedModel, rounds: list[Round]) -> list[Drafted]:
    """Our drafts of each round, with the context carried from round to round."""
    engine, drafts, seen = DFlashCandidateGenerator(drafter, view_target(target)), list[Drafted](), list[Tensor]()
    handle = drafter.norm.register_forward_hook(lambda _module, _args, out: seen.append(out))
    held = 0
    for each in rounds:
        engine.inject_run(each.taps, held)
        held += each.taps.shape[1]
        draft = engine.propose(each.anchor, each.position, engine.most)
        candidates = draft.vocabulary if draft.vocabulary is not None and draft.vocabulary.dim() == 3 else None
        drafts.append(Drafted(seen[-1], draft.logits, draft.tokens, candidates))
    handle.remove()
    return drafts


def plain_text(target: PreTrainedModel, ids: Tensor, new: int) -> list[int]:
    """Greedy text without any drafter; new tokens only."""
    return target.generate(ids, max_new_tokens=new, do_sample=False)[0, ids.shape[1] :].tolist()


def spoken(
    target: PreTrainedModel, drafter: Any, ids: Tensor, new: int, stop: int | None = None
) -> tuple[list[int], list[Any]]:
    """Our drafted text, new tokens only, and our rounds, through the public ``generate``."""
    import dflash_hf

    options = {"max_new_tokens": new, "do_sample": False, "eos_token_id": stop, "pad_token_id": 0}
    dflash_hf.attach(target)
    drafted = target.generate(ids, assistant=drafter, **options)[0, ids.shape[1] :].tolist()
    trace = dflash_hf.last_trace()
    assert trace is not None
    return drafted, list(trace.rounds)
