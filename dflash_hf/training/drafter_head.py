"""What a drafter makes of its hidden states on the way to logits, for the rows of a step.

In: a drafter, the target's rows of the step. Out: the drafter's own rows, and the Markov head's correction of them.
Shapes: A blocks, J drafted slots, R rows, r the Markov head's rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dflash_hf.drafter.heads.markov import MarkovHead
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.training.heads import HeadRows

__all__ = ["Correction", "correction_of", "drafter_rows"]


@dataclass(frozen=True, slots=True)
class Correction:
    """Added to the scaled logits: ``code @ weight.T``."""

    code: Tensor  # [..., r] of the token before each slot
    weight: Tensor  # [R, r]

    def at(self, kept: Tensor) -> Correction:
        """Of the slots ``kept`` [n] alone, counted through all blocks."""
        return Correction(self.code.flatten(0, -2).index_select(0, kept), self.weight)


def drafter_rows(drafter: DFlashDrafter, rows: HeadRows) -> HeadRows:
    """``rows`` as the drafter has them: the target's, or those of a head of its own for the same tokens."""
    if drafter.config.draft_vocab_size is None:
        return rows
    return replace(rows, weight=_columns(drafter.lm_head.weight, rows), bias=None)


def correction_of(drafter: DFlashDrafter, rows: HeadRows, before: Tensor) -> Correction | None:
    """The Markov head's correction after the tokens ``before`` [A, J]; None without such a head."""
    head = drafter.head
    if not isinstance(head, MarkovHead):
        return None
    return Correction(head.markov_w1(before), _columns(head.markov_w2.weight, rows))


def _columns(weight: Tensor, rows: HeadRows) -> Tensor:
    return weight if rows.columns is None else torch.index_select(weight, 0, rows.columns)
