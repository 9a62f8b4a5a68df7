"""From a document to blocks: which tokens are anchors, what their block sees, what it must predict.

At run time a block sees the features of tokens strictly before its anchor, and itself. Training packs many blocks
into a row and must keep exactly that: the anchor's own feature would give its successor away, and blocks must not
see each other. Shapes: N rows, A anchors a row, K slots, S tokens of the document.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_hf.training.documents import Document

__all__ = ["Blocks", "block_visibility", "draw_anchors", "make_blocks", "valid_anchors"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of one document, ready for the drafter."""

    ids: Tensor  # [N, A * K] anchor and masks
    positions: Tensor  # [N, A * K]
    visible: Tensor  # bool [N, 1, A * K, (S - 1) + A * K]
    labels: Tensor  # [N, A, K - 1], -100 where there is nothing to predict


def valid_anchors(document: Document) -> Tensor:
    """Places [n] of answer tokens that have a successor: the first anchor at run time is the first answer token."""
    return torch.arange(document.prompt_length, len(document.ids) - 1)


def draw_anchors(document: Document, count: int, generator: torch.Generator) -> Tensor:
    """At most ``count`` of the valid anchors, ascending; all of them for 0."""
    anchors = valid_anchors(document)
    if not 0 < count < len(anchors):
        return anchors
    return anchors[torch.randperm(len(anchors), generator=generator)[:count].sort().values]


def make_blocks(document: Document, anchors: Tensor, *, slots: int, mask_token_id: int, per_row: int) -> Blocks:
    """Blocks of ``slots`` at the anchors [n], ``per_row`` of them in a row; the last row is filled up."""
    length, count = len(document.ids), len(anchors)
    rows = -(-count // per_row)
    places = torch.cat([anchors, anchors.new_full((rows * per_row - count,), int(anchors[-1]))]).view(rows, per_row)
    reach = places[..., None] + torch.arange(slots)  # [N, A, K]
    ids = torch.full_like(reach, mask_token_id)
    ids[..., 0] = document.ids[places]
    labels = torch.where(reach < length, document.ids[reach.clamp(max=length - 1)], -100)[..., 1:]
    labels.view(-1, slots - 1)[count:] = -100
    return Blocks(ids.flatten(1), reach.flatten(1), block_visibility(places, slots, length - 1), labels)


def block_visibility(places: Tensor, slots: int, context: int) -> Tensor:
    """Who sees whom: bool [N, 1, A * K, context + A * K] for anchors at ``places`` [N, A].

    A slot sees context rows before its anchor and the slots of its own block; windows and causality inside the block
    are the drafter's own rule and come on top.
    """
    anchor = places.repeat_interleave(slots, dim=1)  # [N, A * K]
    block = torch.arange(anchor.shape[1]) // slots
    before = torch.arange(context) < anchor[..., None]
    own = (block[:, None] == block).expand(len(anchor), -1, -1)
    return torch.cat([before, own], dim=-1)[:, None]
