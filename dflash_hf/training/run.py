"""Train a drafter by a recipe: one readable loop, in one process or several, resumable at any step.

answers --documents--> features (target, frozen) --anchors--> packs --drafter--> hidden --frozen head--> loss --> step

Which documents a step takes, which anchors and which rows of a sampled head, are functions of the recipe's seed and
the step: several processes together, and a run that was stopped, do what one unbroken process does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import TrainingError
from dflash_hf.target.view import TargetView
from dflash_hf.training import checkpoint
from dflash_hf.training.documents import Corpus, Document, fingerprint, places_of_step
from dflash_hf.training.draft_loss import DraftLoss, Turn, packs_for
from dflash_hf.training.evaluate import Evaluation, evaluate
from dflash_hf.training.features.features import FeatureSource
from dflash_hf.training.heads import Head, HeadRows, answer_tokens, head_for
from dflash_hf.training.log import RunLog
from dflash_hf.training.optimizers import Optimizers
from dflash_hf.training.origin import Origin
from dflash_hf.training.processes import join, share_of, total
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.schedule import total_steps
from dflash_hf.training.signals import StopFlag

__all__ = ["Progress", "Start", "Trainer"]


@dataclass(frozen=True, slots=True)
class Start:
    """What a run starts from (``training.prepare``)."""

    corpus: Corpus
    features: FeatureSource  # the target's taps of a document
    drafter: DFlashDrafter
    target: tuple[str, str]  # public name and weights_fingerprint
    state: checkpoint.RunState | None = None  # whose weights the drafter has, where the run goes on
    evaluation: dict[str, list[Document]] = field(default_factory=dict)  # further sets, beside the held-out answers
    origin: Origin | None = None  # of a drafter that was there before


@dataclass(frozen=True, slots=True)
class Progress:
    """After a step. ``tokens`` are answer tokens of the documents seen, over all processes and sessions."""

    step: int
    steps: int
    loss: float
    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float:
        return self.seconds / max(self.step, 1) * (self.steps - self.step)


class Trainer:
    """One run: drafter, optimisers, and how far it is. :meth:`train` takes it to its last step.

    Args:
        view: the target, frozen.
        recipe: what to do.
        start: documents, features, and the drafter to train in place, with the state it goes on from if there is one.

    Raises:
        TrainingError: the launch or this torch cannot do what the recipe says, the target's head cannot be read, or the
            output folder cannot be written.
    """

    def __init__(self, view: TargetView, recipe: Recipe, start: Start) -> None:
        corpus = start.corpus
        self.view, self.recipe, self.corpus, self.features = view, recipe, corpus, start.features
        self.evaluation = ({"held_out": corpus.held_out} if corpus.held_out else {}) | start.evaluation
        self.accelerator = join(recipe.precision, recipe.documents_per_step)
        self.output, self.drafter, self._target = Path(recipe.output), start.drafter, start.target
        self.origin = start.origin
        self.steps = total_steps(
            len(corpus.training), recipe.documents_per_step, steps=recipe.steps, epochs=recipe.epochs
        )
        self.module = self.accelerator.prepare_model(DraftLoss(self.drafter, view, recipe))
        said = self.drafter.vocabulary if self.drafter.config.reduced_vocabulary else None
        self.head: Head = head_for(view, corpus.training, recipe.head_sample, self.accelerator.device, said)
        self.optimizers = Optimizers(self.module, recipe)
        self.step, self.seconds, self.tokens = 0, 0.0, 0
        if (state := start.state) is not None:
            self.optimizers.load_state_dict(state.optimizers)
            self.step, self.seconds, self.tokens = state.step, state.seconds, state.tokens
        self.log = RunLog(self.output, self.step) if self.accelerator.is_main_process else None

    @property
    def finished(self) -> bool:
        return self.step >= self.steps

    def train(self, on_step: Callable[[Progress], None] = lambda progress: None) -> DFlashDrafter:
        """Run the remaining steps. SIGTERM or Ctrl-C ends it after the current one, with the state saved.

        Raises:
            TrainingError: the loss is no number any more, or the state cannot be saved.
        """
        saved = began = time.monotonic()
        before = self.seconds
        self.module.train()
        with StopFlag() as stop:
            while not self.finished:
                loss = self._one_step()
                self.seconds = before + time.monotonic() - began
                on_step(Progress(self.step, self.steps, loss, self.tokens, self.seconds))
                evaluating = self.step % self.recipe.evaluate_every == 0 or self.finished
                due = evaluating or time.monotonic() - saved > 60 * self.recipe.save_minutes
                stopping, saving = total(self.accelerator, stop.raised, due)  # all processes, or none
                if stopping or saving:
                    self.save()
                    saved = time.monotonic()
                if stopping:
                    break
                if evaluating:  # after the state is safe: it may take a while, and a stop waits for it
                    self.evaluate()
        return self.drafter.eval()

    def evaluated(self) -> dict[str, list[Document]]:
        """The documents an evaluation looks at, by set."""
        return {name: documents[: self.recipe.evaluation_documents] for name, documents in self.evaluation.items()}

    def evaluate(self) -> dict[str, Evaluation]:
        """Simulated τ on every evaluation set, by all processes together, logged and returned."""
        results = {}
        for name, documents in self.evaluated().items():
            share = share_of(documents, self.accelerator)
            result = evaluate(self.drafter, self.view, share, self.features, self.recipe.blocks_per_row)
            results[name] = result.summed(lambda values: total(self.accelerator, *values))
            self._write(evaluation=name, **results[name].row())
        return results

    def save(self) -> None:
        """Write the state; only the main process does."""
        if self.accelerator.is_main_process:
            checkpoint.write_state(
                self.output,
                checkpoint.RunState(
                    recipe=self.recipe.model_dump(mode="json"),
                    target=self._target,
                    corpus=fingerprint(self.corpus.training),
                    config=self.drafter.config.to_dict(),
                    drafter=self.drafter.state_dict(),
                    optimizers=self.optimizers.state_dict(),
                    step=self.step,
                    seconds=self.seconds,
                    tokens=self.tokens,
                ),
            )
        self.accelerator.wait_for_everyone()

    def _one_step(self) -> float:
        recipe, started = self.recipe, time.monotonic()
        places = places_of_step(self.step, recipe.documents_per_step, len(self.corpus.training), recipe.seed)
        turns = [(epoch, self.corpus.training[place]) for epoch, place in places]
        rows = self.head.rows(f"{recipe.seed}-{self.step}", answer_tokens([document for _, document in turns]))
        self.optimizers.set_rate(self.step, self.steps, recipe.warmup)
        self.optimizers.zero_grad()
        loss, weight = total(self.accelerator, *self._gradients(share_of(turns, self.accelerator), rows))
        norm = self._average(weight)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._give_up(loss, norm)
        self.optimizers.step()
        self.step += 1
        self.tokens += sum(document.answer_length for _, document in turns)
        self._write(loss=round(loss / weight, 6), norm=round(norm, 4), seconds=round(time.monotonic() - started, 3))
        return loss / weight

    def _gradients(self, turns: list[Turn], rows: HeadRows) -> tuple[float, float]:
        """Add up gradients over this process's packs; gradients are exchanged with the last."""
        config = self.drafter.config
        packs = packs_for(
            turns,
            self.features,
            self.recipe,
            slots=self._slots(),
            mask_token_id=config.mask_token_id,
            first_slot=config.first_slot,
        )
        loss = weight = 0.0
        for number, pack in enumerate(packs, start=1):
            with nullcontext() if number == len(packs) else self.accelerator.no_sync(self.module):
                part, counted = self.module(pack.to(self.accelerator.device), rows)
                self.accelerator.backward(part)
            loss, weight = loss + float(part.detach()), weight + float(counted)
        return loss, weight

    def _slots(self) -> int:
        """Slots of this step's blocks: some steps train a causal block's first slots only."""
        whole, recipe = self.drafter.config.block_size, self.recipe
        if recipe.train_slots is None or self.step % recipe.whole_blocks_every == 0:
            return whole
        return min(recipe.train_slots, whole)

    @torch.no_grad()
    def _average(self, weight: float) -> float:
        """Turn sums into the mean over all processes and clip it; the norm before clipping."""
        scale = self.accelerator.num_processes / weight  # the exchange of gradients has already averaged them
        parameters = [parameter for parameter in self.module.parameters() if parameter.grad is not None]
        torch._foreach_mul_([parameter.grad for parameter in parameters], scale)
        norm = self.accelerator.clip_grad_norm_(parameters, self.recipe.clip)
        return float(norm) if norm is not None else math.nan

    def _give_up(self, loss: float, norm: float) -> None:
        self.save()
        raise TrainingError(
            f"step {self.step}: loss {loss}, gradient norm {norm}. The weights before this step are saved. Start from "
            f"them with a smaller learning_rate: output=ANOTHER_FOLDER start_from={self.output}"
        )

    def _write(self, **values: object) -> None:
        if self.log is not None:
            self.log.write(step=self.step, tokens=self.tokens, **values)
