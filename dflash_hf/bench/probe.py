"""A short text through the target once, and what a drafter would have kept of it: acceptance without decoding.

A greedy answer is what the target will say again. With its taps from one pass, a drafter is asked at every token of the
answer, through the engine that drafts in ``generate``, whatever its dialect.
Shapes: S tokens of prompt and answer, L taps, n anchors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.target.taps import TapRecorder
from dflash_hf.target.view import TargetView
from dflash_hf.training.evaluate import Evaluation, walk

__all__ = ["ProbeText", "accepted_at", "evaluation_of", "probe_text"]


@dataclass(frozen=True)
class ProbeText:
    """Prompt and greedy answer, and the target's taps over it, kept by the layers they are of."""

    view: TargetView
    ids: Tensor  # [1, S]
    prompt_length: int
    _taps: dict[tuple[tuple[int, ...], str], Tensor] = field(default_factory=dict)

    @property
    def anchors(self) -> range:
        """Answer tokens that have a successor."""
        return range(self.prompt_length, self.ids.shape[1] - 1)

    @torch.no_grad()
    def taps(self, layer_ids: list[int], last: str) -> Tensor:
        """Taps [1, S, L * width] of these layers; the last layer's ``"normed"`` or ``"raw"``."""
        key = (tuple(layer_ids), last)
        if key not in self._taps:
            caught: list[Tensor] = []
            with TapRecorder(self.view, list(layer_ids), last).listen(lambda taps, _positions: caught.append(taps)):
                self.view.model(input_ids=self.ids, use_cache=False)
            self._taps[key] = caught[0]
        return self._taps[key]


@torch.no_grad()
def probe_text(view: TargetView, inputs: Any, tokens: int) -> ProbeText:
    """The target's greedy answer of at most ``tokens`` tokens to a prompt's ``inputs``, by its class's own generate."""
    generate: Any = type(view.model).generate
    text = generate(view.model, **inputs, max_new_tokens=tokens, do_sample=False, num_beams=1)
    return ProbeText(view, text, inputs["input_ids"].shape[1])


def accepted_at(drafter: DFlashDrafter, text: ProbeText, every: int = 1, most: int | None = None) -> Tensor:
    """How many proposals [n], of ``most`` at most, the target would keep at every anchor, or at each ``every``-th."""
    config, ids = drafter.config, text.ids
    taps = text.taps(config.target_layer_ids, config.last_tap)
    engine = DFlashCandidateGenerator(drafter, text.view)
    accepted, known = [], 0
    for place in text.anchors[::every]:
        engine.inject_run(taps[:, known:place], known)
        known = place
        count = min(engine.most if most is None else most, engine.most, ids.shape[1] - 1 - place)
        drafted = engine.propose(ids[:, place : place + 1], place, count).tokens[0]
        right = drafted.to(ids.device) == ids[0, place + 1 : place + 1 + count]
        accepted.append(int(right.int().cumprod(dim=0).sum()))
    return torch.tensor(accepted, dtype=torch.long)


def evaluation_of(accepted: Tensor, slots: int) -> Evaluation:
    """The decoding run that ``accepted`` [n] at all anchors of one text amounts to."""
    by_slot, ended, steps = [0] * slots, [], []
    for place, step in walk(accepted):
        steps.append(step)
        if step <= int(accepted[place]):
            ended.append(step)
        for slot in range(min(int(accepted[place]), step)):
            by_slot[slot] += 1
    return Evaluation(1, len(steps), sum(steps), len(ended), sum(ended), tuple(by_slot))
