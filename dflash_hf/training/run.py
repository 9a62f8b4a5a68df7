"""Train a drafter by a recipe: one process, one readable loop, resumable at any step.

documents --anchors--> blocks --drafter--> hidden --target's frozen head--> weighted cross-entropy --> AdamW
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import TrainingError
from dflash_hf.target.view import TargetView
from dflash_hf.training.anchors import draw_anchors, make_blocks
from dflash_hf.training.blocks import draft_hidden
from dflash_hf.training.documents import Document, Documents
from dflash_hf.training.evaluate import evaluate
from dflash_hf.training.losses import SampledHead, position_weights, weighted_cross_entropy
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.start import new_drafter

__all__ = ["Trainer", "learning_rate_at"]

STATE = "state.pt"
# What a resumed run may change: none of it touches a weight.
_FREE_TO_CHANGE = frozenset(
    {"output", "target_name", "threads", "save_minutes", "evaluate_every", "evaluation_documents"}
)


def learning_rate_at(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to nothing."""
    warm = max(1, round(recipe.steps * recipe.warmup))
    if step < warm:
        return recipe.learning_rate * (step + 1) / warm
    progress = (step - warm) / max(1, recipe.steps - warm)
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


class Trainer:
    """State of one run: drafter, optimiser, position in the data. ``train`` runs it to the recipe's last step."""

    def __init__(self, view: TargetView, recipe: Recipe) -> None:
        self.view, self.recipe = view, recipe
        self.documents = Documents(recipe.documents, list(recipe.target_layer_ids))
        self.drafter: DFlashDrafter = new_drafter(view, recipe)
        self.optimizer = torch.optim.AdamW(
            self.drafter.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
        )
        self.generator = torch.Generator().manual_seed(recipe.seed)
        self.step = self.epoch = self.position = 0
        head = view.head.get_parameter("weight").detach().float()
        self.head = SampledHead(head, self.documents.vocabulary(), recipe.head_sample)
        self.output = Path(recipe.output)
        self.output.mkdir(parents=True, exist_ok=True)
        self._stopping = False
        self._resume()

    def train(self) -> DFlashDrafter:
        """Run the remaining steps; on SIGTERM save and return early."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_stopping", True))
        stream, saved = self._stream(), time.monotonic()
        self.drafter.train()
        while self.step < self.recipe.steps and not self._stopping:
            started = time.monotonic()
            loss = self._one_step([next(stream) for _ in range(self.recipe.documents_per_step)])
            self.step += 1
            self._log(loss=round(loss, 4), seconds=round(time.monotonic() - started, 2))
            if self.step % self.recipe.evaluate_every == 0 or self.step == self.recipe.steps:
                self._evaluate()
            if time.monotonic() - saved > 60 * self.recipe.save_minutes:
                self._save()
                saved = time.monotonic()
        self._save()
        return self.drafter.eval()

    def _stream(self) -> Any:
        """Documents from where the run stands, epoch after epoch."""
        while True:
            for place, document in enumerate(self.documents.shuffled(self.epoch, self.recipe.seed)):
                if place < self.position:
                    continue
                self.position = place + 1
                yield document
            self.epoch, self.position = self.epoch + 1, 0

    def _one_step(self, documents: list[Document]) -> float:
        rate = learning_rate_at(self.step, self.recipe)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        rows, raised = self.head.draw(self.generator)
        total = weight = 0.0
        for place, document in enumerate(documents):
            whole = (self.step * len(documents) + place) % self.recipe.full_block_every == 0
            loss, counted = self._loss(document, rows, raised, whole)
            if counted:
                loss.backward()
                total, weight = total + loss.item(), weight + counted
        if not math.isfinite(total) or not weight:
            raise TrainingError(f"step {self.step}: loss {total} over weight {weight}; the last saved state is kept")
        for parameter in self.drafter.parameters():
            if parameter.grad is not None:
                parameter.grad /= weight
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.recipe.clip)
        self.optimizer.step()
        return total / weight

    def _loss(self, document: Document, rows: Tensor, raised: Tensor, whole: bool) -> tuple[Tensor, float]:
        recipe = self.recipe
        anchors = draw_anchors(document, recipe.anchors_per_document, self.generator)
        if not len(anchors):
            return torch.zeros(()), 0.0
        slots = recipe.block_size if whole else recipe.train_slots
        blocks = make_blocks(
            document, anchors, slots=slots, mask_token_id=recipe.mask_token_id, per_row=recipe.blocks_per_row
        )
        hidden = draft_hidden(self.drafter, self.view, document, blocks)[:, :, 1:].flatten(0, -2)
        weights = position_weights(slots - 1, recipe.gamma).expand(blocks.labels.shape).flatten()
        labels = self.head.place(blocks.labels.flatten())
        loss, counted = weighted_cross_entropy(hidden, rows, raised, labels, weights)
        return loss, float(counted)

    def _evaluate(self) -> None:
        self.drafter.eval()
        held_out = self.documents.held_out(self.recipe.evaluation_documents)
        result = evaluate(self.drafter, self.view, held_out, self.recipe.blocks_per_row)
        self._log(tau=round(result.tau, 4), rounds=result.rounds, by_position=[round(p, 4) for p in result.by_position])
        self.drafter.train()

    def _log(self, **values: Any) -> None:
        entry = {"step": self.step, "epoch": self.epoch, **values}
        with (self.output / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")

    def _save(self) -> None:
        state = {
            "recipe": self.recipe.to_dict(),
            "drafter": self.drafter.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "place": [self.step, self.epoch, self.position],
        }
        temporary = self.output / (STATE + ".partial")
        torch.save(state, temporary)
        os.replace(temporary, self.output / STATE)

    def _resume(self) -> None:
        path = self.output / STATE
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        decisive = {key: value for key, value in self.recipe.to_dict().items() if key not in _FREE_TO_CHANGE}
        if changed := [key for key, value in decisive.items() if state["recipe"].get(key) != value]:
            raise TrainingError(
                f"{path} belongs to a run with other values for {', '.join(changed)}; "
                "finish it with its own recipe, or choose another output folder"
            )
        self.drafter.load_state_dict(state["drafter"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.step, self.epoch, self.position = state["place"]
