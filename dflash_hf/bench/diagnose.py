"""Does this drafter draft for this target, and if it hardly does, which reading of its files would?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dflash_hf.bench.alternatives import Alternative, alternatives
from dflash_hf.bench.probe import ProbeText, accepted_at, evaluation_of
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.drafter.redescribed import redescribed
from dflash_hf.training.evaluate import Evaluation

__all__ = ["NEAR_ONE", "Diagnosis", "diagnose"]

NEAR_ONE = 1.5  # tokens a round, the bonus included, below which other readings are tried
_EVERY = 3  # anchors between two that an alternative is first tried at
_FACTOR, _MORE = 1.25, 0.3  # how much better an alternative has to draft to be named


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the probe saw. ``tried`` has, for each alternative, the tokens a round it would give, roughly."""

    evaluation: Evaluation
    tried: tuple[tuple[Alternative, float], ...] = ()
    better: Alternative | None = None
    better_tau: float | None = None

    @property
    def near_one(self) -> bool:
        return self.evaluation.tau < NEAR_ONE

    def row(self) -> dict[str, Any]:
        """For ``--json``."""
        better = None
        if self.better is not None:
            key, value = self.better.key, getattr(self.better.config, self.better.field)
            better = {"change": self.better.words, "key": key, "value": value, "tau": round(self.better_tau or 0.0, 4)}
        tried = [{"change": each.words, "key": each.key, "tau": round(tau, 4)} for each, tau in self.tried]
        return {**self.evaluation.row(), "near_one": self.near_one, "tried": tried, "better": better}


def diagnose(
    drafter: DFlashDrafter, text: ProbeText, say: Callable[[str], None] = lambda text: None, near: float = NEAR_ONE
) -> Diagnosis:
    """Ask the drafter at every token of ``text``; where it keeps less than ``near``, ask its other readings too.

    Nothing on disk, and nothing of ``drafter``, is changed.
    """
    config = drafter.config
    own = evaluation_of(accepted_at(drafter, text), config.num_draft_tokens)
    if own.tau >= near:
        return Diagnosis(own)
    origins = getattr(drafter.provenance, "origins", None)
    others = alternatives(config, text.view, origins)
    say(f"{own.tau:.2f} tokens a round: trying {len(others)} other readings of the files, in memory")
    tried = [(each, _rough(redescribed(drafter, each.config), text)) for each in others]
    if not tried:
        return Diagnosis(own)
    best = max(tried, key=lambda each: each[1])[0]
    tau = evaluation_of(accepted_at(redescribed(drafter, best.config), text), best.config.num_draft_tokens).tau
    if tau < max(_FACTOR * own.tau, own.tau + _MORE):
        return Diagnosis(own, tuple(tried))
    return Diagnosis(own, tuple(tried), best, tau)


def _rough(drafter: DFlashDrafter, text: ProbeText) -> float:
    """Tokens a round, bonus included, where rounds start at every few tokens."""
    return 1.0 + float(accepted_at(drafter, text, _EVERY).float().mean())
