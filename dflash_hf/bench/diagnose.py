"""Does this drafter draft for this target, and if it hardly does, which reading of its files would?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dflash_hf.bench.alternatives import Alternative, alternatives, windows_past
from dflash_hf.bench.probe import ProbeText, accepted_at, evaluation_of
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.drafter.redescribed import redescribed
from dflash_hf.training.evaluate import Evaluation

__all__ = ["NEAR_ONE", "Diagnosis", "diagnose"]

NEAR_ONE = 1.5  # tokens a round, the bonus included, below which other readings are tried
_EVERY = 3  # anchors between two that an alternative is first tried at
_FACTOR, _MORE = 1.25, 0.3  # how much better an alternative has to draft for the files to be called wrong
_ERRORS = 2.0  # by how many standard errors it has to keep more for it to be worth a hint


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the probe saw. ``tried`` has, for each alternative, the tokens a round it would give, roughly.

    ``best`` is the one that drafts best, where it keeps more than the drafter as it is and not by chance alone;
    ``best_tau`` its tokens a round. ``unseen`` are windows too long for this text to show whether they are right.
    """

    evaluation: Evaluation
    tried: tuple[tuple[Alternative, float], ...] = ()
    best: Alternative | None = None
    best_tau: float = 0.0
    unseen: tuple[int, ...] = ()

    @property
    def near_one(self) -> bool:
        return self.evaluation.tau < NEAR_ONE

    @property
    def better(self) -> Alternative | None:
        """The reading that drafts so much better that the files, or how they are read, are wrong."""
        tau = self.evaluation.tau
        return self.best if self.best_tau >= max(_FACTOR * tau, tau + _MORE) else None

    @property
    def hint(self) -> Alternative | None:
        """The reading that drafts a little better: a tap or a mask may be wrong, or this text suits it."""
        return self.best if self.better is None else None

    def row(self) -> dict[str, Any]:
        """For ``--json``."""
        tried = [{"change": each.words, "keys": each.keys, "tau": round(tau, 4)} for each, tau in self.tried]
        named = {"better": self._named(self.better), "hint": self._named(self.hint)}
        seen = {"near_one": self.near_one, "tried": tried, "windows_not_tested": list(self.unseen)}
        return {**self.evaluation.row(), **seen, **named}

    def _named(self, reading: Alternative | None) -> dict[str, Any] | None:
        if reading is None:
            return None
        return {"change": reading.words, "keys": reading.keys, "tau": round(self.best_tau, 4)}


def diagnose(
    drafter: DFlashDrafter, text: ProbeText, say: Callable[[str], None] = lambda text: None, near: float = NEAR_ONE
) -> Diagnosis:
    """Ask the drafter at every token of ``text``; where it keeps less than ``near``, ask its other readings too.

    An infinite ``near`` asks them in any case. Nothing on disk, and nothing of ``drafter``, is changed.
    """
    config = drafter.config
    kept = accepted_at(drafter, text)
    own = evaluation_of(kept, config.num_draft_tokens)
    if own.tau >= near:
        return Diagnosis(own)
    positions = text.ids.shape[1]
    others = alternatives(config, text.view, drafter.provenance, positions)
    unseen = tuple(windows_past(config, positions))
    say(f"{own.tau:.2f} tokens a round: trying {len(others)} other readings of the files, in memory")
    most = config.num_draft_tokens  # a reading with one slot more is not better for that
    tried = [(each, _rough(redescribed(drafter, each.config), text, most)) for each in others]
    if not tried:
        return Diagnosis(own)
    best = max(tried, key=lambda each: each[1])[0]
    other = accepted_at(redescribed(drafter, best.config), text, most=most)
    if not _keeps_more(other, kept):
        return Diagnosis(own, tuple(tried), unseen=unseen)
    tau = evaluation_of(other, min(most, best.config.num_draft_tokens)).tau
    return Diagnosis(own, tuple(tried), best, tau, unseen)


def _keeps_more(other: Tensor, kept: Tensor) -> bool:
    """Whether ``other`` [n] keeps more than ``kept`` [n] at the same tokens, beyond what the spread of n allows."""
    more = (other - kept).double()
    return bool(more.mean() > _ERRORS * more.std() / len(more) ** 0.5)


def _rough(drafter: DFlashDrafter, text: ProbeText, most: int) -> float:
    """Tokens a round, bonus included, where rounds start at every few tokens."""
    return 1.0 + float(accepted_at(drafter, text, _EVERY, most).float().mean())
