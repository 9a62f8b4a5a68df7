"""A row of the table: one architecture and what came of it.

An outcome is one of

* ``exact``: every drafter gave the plain text, and its scores within rounding;
* ``refused``: the product said before any work why it does not draft here;
* ``differs``: the text or its scores part from plain: a fault of ours, with the place;
* ``failed``: an error, a hang or a crash while drafting, which is no refusal: a fault too;
* ``not built``: no small model of it could be made, or transformers itself cannot decode the one that was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

__all__ = ["DIFFERS", "EXACT", "FAILED", "FAULTS", "NOT_BUILT", "OUTCOMES", "REFUSED", "Row", "counts"]

EXACT, REFUSED, DIFFERS, FAILED, NOT_BUILT = OUTCOMES = ("exact", "refused", "differs", "failed", "not built")
FAULTS = (DIFFERS, FAILED)


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one architecture; ``why`` says it in words where it is not exact."""

    model_type: str
    model_class: str
    outcome: str
    why: str = ""
    cache: str = ""  # class of the cache that plain decoding used, and the kinds of its layers
    state: str = ""  # how the target's memory goes back: "crop" ...

    @property
    def key(self) -> str:
        """The key of its :class:`~dflash_hf.bench.targets.names.Architecture`."""
        return f"{self.model_type}/{self.model_class}"

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """How many rows have each outcome; those that none has are left out.

    >>> counts([Row("llama", "LlamaForCausalLM", EXACT)])
    {'exact': 1}
    """
    found = Counter(row.outcome for row in rows)
    return {outcome: found[outcome] for outcome in OUTCOMES if found[outcome]}
