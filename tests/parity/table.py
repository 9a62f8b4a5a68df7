"""What was compared, how far the two sides are apart, and whether that is a difference.

In: the authors' tensors and ours. Out: a printed table and an exit status, 3 where a case differs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib.metadata import version

import torch
from torch import Tensor

__all__ = ["DIFFERS", "TOLERANCE", "Drafted", "Table"]

TOLERANCE = 1e-4
DIFFERS = 3


@dataclass(frozen=True)
class Drafted:
    """One round of one side."""

    hidden: Tensor  # [1, K, D] after the final norm, all slots
    logits: Tensor  # [1, J, W] of the proposing slots: after multiplier, cap and head
    tokens: Tensor  # [1, J] proposed ids
    candidates: Tensor | None = None  # ids [1, J, W] of the columns, where a selector chose them
    unary: Tensor | None = None  # their logits [1, J, V] that the candidates are the best of


@dataclass
class Row:
    """One case: the worst of its rounds."""

    case: str
    rounds: int = 0
    hidden: float | None = None
    logits: float | None = None
    same: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        return (
            not self.same
            or not self.rounds
            or any(part is not None and not part < TOLERANCE for part in (self.hidden, self.logits))
        )


class Table:
    """Rows of one comparison; ``packages`` are named with their versions above them."""

    def __init__(self, *packages: str) -> None:
        self.title = ", ".join(f"{package} {version(package)}" for package in (*packages, "transformers", "torch"))
        self._rows: dict[str, Row] = {}

    def add(self, case: str, theirs: Drafted, ours: Drafted) -> None:
        """Compare one round; of columns in another order the same ids are set against each other first.

        Two sides that round differently may break a tie for the last candidate differently: where their own logits show
        it to be one, that slot's scores are left out, and the row says so.
        """
        row = self._row(case)
        row.rounds += 1
        logits = [theirs.logits, ours.logits]
        if theirs.candidates is not None and ours.candidates is not None:
            orders = [side.sort(-1) for side in (theirs.candidates, ours.candidates)]
            logits = [part.gather(-1, order.indices) for part, order in zip(logits, orders, strict=True)]
            alike = (orders[0].values == orders[1].values).all(dim=-1)
            for slot in (~alike[0]).nonzero().flatten().tolist():
                tie = _is_tie(theirs, ours, slot)
                row.same &= tie
                row.notes.append("a tie for the last candidate" if tie else f"other candidates in row {slot}")
            logits = [part[alike] for part in logits]
        row.hidden = max(row.hidden or 0.0, _apart(theirs.hidden, ours.hidden))
        row.logits = max(row.logits or 0.0, _apart(*logits))
        row.same &= torch.equal(theirs.tokens.flatten(), ours.tokens.flatten())

    def add_text(self, case: str, same: bool, rounds: int, note: str) -> None:
        """One generation, compared by its text and drafts."""
        row = self._row(case)
        row.rounds += rounds
        row.same &= same
        row.notes.append(note)

    def add_refusal(self, case: str, error: Exception) -> None:
        """Their files are not read."""
        row = self._row(case)
        row.same = False
        row.notes.append(f"not read: {error}")

    def show(self) -> int:
        """Print, and give the exit status."""
        wide = max(len(case) for case in self._rows)
        lines = [self.title, f"{'case':{wide}}  rounds   hidden   logits  ids"]
        for row in self._rows.values():
            numbers = " ".join(f"{'-' if part is None else f'{part:.1e}':>8}" for part in (row.hidden, row.logits))
            equal = "DIFFER" if row.differs else "equal"
            lines.append(f"{row.case:{wide}}  {row.rounds:6} {numbers}  {equal}  {'; '.join(dict.fromkeys(row.notes))}")
        differing = [row.case for row in self._rows.values() if row.differs]
        lines.append(f"{len(self._rows)} cases, {len(differing)} differ" + "".join(f"\n  {case}" for case in differing))
        sys.stdout.write("\n".join(lines) + "\n\n")
        return DIFFERS if differing else 0

    def _row(self, case: str) -> Row:
        return self._rows.setdefault(case, Row(case))


def _apart(theirs: Tensor, ours: Tensor) -> float:
    apart = (theirs.float().reshape(ours.shape) - ours.float()).abs()
    return apart.max().item() if apart.numel() else 0.0


def _is_tie(theirs: Drafted, ours: Drafted, slot: int) -> bool:
    """Whether all ids that only one side has as candidates are as good as their last one, by their own logits."""
    assert theirs.candidates is not None and ours.candidates is not None and theirs.unary is not None
    chosen, other = (set(side.candidates[0, slot].tolist()) for side in (theirs, ours))  # type: ignore[union-attr]
    scores = theirs.unary[0, slot].float()
    last = scores[sorted(chosen)].min()
    return bool(((scores[sorted(chosen ^ other)] - last).abs() < TOLERANCE).all())
