"""What a drafter would accept on held-out answers, in one teacher-forced pass.

A greedy answer is what the target will say again, so a block at every anchor tells how many tokens that anchor's
round would accept; walking from anchor to anchor by those numbers is the decoding run, without the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.target.view import TargetView
from dflash_hf.training.anchors import make_blocks, valid_anchors
from dflash_hf.training.blocks import draft_hidden
from dflash_hf.training.documents import Document

__all__ = ["Evaluation", "evaluate", "walk"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Token-weighted over documents. ``by_position``: of all anchors, how often each slot was right."""

    tau: float  # committed tokens per round, bonus included
    rounds: int
    by_position: list[float]


@torch.no_grad()
def evaluate(drafter: DFlashDrafter, view: TargetView, documents: list[Document], per_row: int = 16) -> Evaluation:
    """Simulated greedy decoding of ``documents``."""
    rounds = committed = anchors_seen = 0
    right_by_slot = torch.zeros(drafter.config.block_size - 1)
    for document in documents:
        anchors = valid_anchors(document)
        if not len(anchors):
            continue
        right = _right_slots(drafter, view, document, anchors, per_row)
        steps = walk(right.long().cumprod(dim=1).sum(dim=1))
        rounds += len(steps)
        committed += sum(steps)
        anchors_seen += len(anchors)
        right_by_slot += right.float().sum(dim=0)
    return Evaluation(committed / max(rounds, 1), rounds, (right_by_slot / max(anchors_seen, 1)).tolist())


def walk(accepted: Tensor) -> list[int]:
    """Committed tokens per round, for accepted drafts [n] at each of n anchors; the last anchor has one successor.

    >>> walk(torch.tensor([1, 0, 2, 0, 0]))
    [2, 3]
    """
    place, steps = 0, []
    while place < len(accepted):
        step = min(int(accepted[place]) + 1, len(accepted) - place)
        steps.append(step)
        place += step
    return steps


def _right_slots(
    drafter: DFlashDrafter, view: TargetView, document: Document, anchors: Tensor, per_row: int
) -> Tensor:  # bool [n, K - 1]
    config = drafter.config
    blocks = make_blocks(
        document, anchors, slots=config.block_size, mask_token_id=config.mask_token_id, per_row=per_row
    )
    hidden = draft_hidden(drafter, view, document, blocks)[:, :, 1:]
    rows = []
    for row, labels in zip(hidden, blocks.labels, strict=True):
        rows.append(view.project(row).argmax(dim=-1) == labels)
    return torch.cat(rows)[: len(anchors)]
