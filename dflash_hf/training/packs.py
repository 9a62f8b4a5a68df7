"""Packs: several documents side by side in one drafter forward, with the blocks at their anchors.

In: documents, their features and anchors. Out: index tensors; who sees whom is ``training.visibility``'s question.
Documents keep their own positions, from 0 each. Shapes: T context rows of all documents, A blocks, K slots, J of them
that say a token, S tokens of a document, L taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from dflash_hf.errors import TrainingError
from dflash_hf.training.documents import Document
from dflash_hf.training.features.features import Features

__all__ = ["NO_LABEL", "Pack", "first_fit", "make_pack", "pack_tokens"]

NO_LABEL = -100


@dataclass(frozen=True, slots=True)
class Pack:
    """Documents side by side. Context rows and blocks stand in the documents' order."""

    taps: Tensor  # [T, L * width]
    final: Tensor | None  # [T, width], where the features have it
    context_positions: Tensor  # [T], from 0 in each document
    context_documents: Tensor  # [T], number of the document in this pack
    ids: Tensor  # [A, K], the anchor and masks
    positions: Tensor  # [A, K]
    labels: Tensor  # [A, J], NO_LABEL past the document's end
    teacher_rows: Tensor  # [A, J], the context row whose final state predicts the label; 0 where there is none
    anchors: Tensor  # [A], place in its document
    block_documents: Tensor  # [A], number of the document in this pack
    context_lengths: tuple[int, ...]  # context rows of each document
    block_counts: tuple[int, ...]  # blocks of each document

    @property
    def before(self) -> Tensor:
        """The token [A, J] before each label: the anchor, then the labels; some token where there is no label."""
        return torch.cat([self.ids[:, :1], self.labels[:, :-1].clamp(min=0)], dim=1)

    def to(self, device: torch.device | str) -> Pack:
        """The same pack, its tensors on ``device``."""
        moved: dict[str, Any] = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)


def pack_tokens(document: Document, anchors: int, slots: int) -> int:
    """What a document costs a pack: its context rows, and the slots of its blocks."""
    return len(document.ids) - 1 + anchors * slots


def first_fit(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Groups of places in ``sizes``: each goes, in order, to the first group where it keeps the sum within ``limit``.

    One that is over the limit by itself gets a group of its own.

    >>> first_fit([5, 7, 4, 2, 20], limit=10)
    [[0, 2], [1, 3], [4]]
    """
    groups: list[list[int]] = []
    room: list[int] = []
    for place, size in enumerate(sizes):
        found = next((group for group, left in enumerate(room) if size <= left), None)
        if found is None:
            groups.append([])
            room.append(limit)
            found = len(groups) - 1
        groups[found].append(place)
        room[found] -= size
    return groups


def make_pack(
    documents: Sequence[Document],
    features: Sequence[Features],
    anchors: Sequence[Tensor],  # per document, places [n] in ascending order; may be empty
    *,
    slots: int,
    mask_token_id: int,
    first_slot: int = 1,
) -> Pack:
    """Blocks of ``slots`` at the anchors, and the context they read.

    From ``first_slot`` on every slot says a token; the first of them says the one after the anchor.

    Raises:
        TrainingError: a document has another number of feature rows than tokens that have a successor.
    """
    _check_rows(documents, features)
    lengths = [len(document.ids) - 1 for document in documents]
    counts = [len(places) for places in anchors]
    first_rows = [sum(lengths[:number]) for number in range(len(documents))]
    blocks = [
        _blocks(*each, slots, mask_token_id, slots - first_slot)
        for each in zip(documents, anchors, first_rows, strict=True)
    ]
    ids, labels, teachers = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    finals = [feature.final for feature in features if feature.final is not None]
    numbers, places = torch.arange(len(documents)), torch.cat(list(anchors))
    return Pack(
        taps=torch.cat([feature.taps for feature in features]),
        final=torch.cat(finals) if len(finals) == len(features) else None,
        context_positions=torch.cat([torch.arange(length) for length in lengths]),
        context_documents=numbers.repeat_interleave(torch.tensor(lengths)),
        ids=ids,
        positions=places[:, None] + torch.arange(slots),
        labels=labels,
        teacher_rows=teachers,
        anchors=places,
        block_documents=numbers.repeat_interleave(torch.tensor(counts)),
        context_lengths=tuple(lengths),
        block_counts=tuple(counts),
    )


def _blocks(
    document: Document, anchors: Tensor, first_row: int, slots: int, mask_token_id: int, drafted: int
) -> tuple[Tensor, Tensor, Tensor]:  # ids [n, K], labels [n, J], teacher rows [n, J]
    last = len(document.ids) - 1
    ids = torch.full((len(anchors), slots), mask_token_id)
    ids[:, 0] = document.ids[anchors]
    reach = anchors[:, None] + torch.arange(1, drafted + 1)
    labels = torch.where(reach <= last, document.ids[reach.clamp(max=last)], NO_LABEL)
    return ids, labels, torch.where(reach <= last, first_row + reach - 1, 0)


def _check_rows(documents: Sequence[Document], features: Sequence[Features]) -> None:
    for document, feature in zip(documents, features, strict=True):
        rows, expected = len(feature.taps), len(document.ids) - 1
        if rows != expected or (feature.final is not None and len(feature.final) != expected):
            raise TrainingError(
                f"document {document.id} has {expected + 1} tokens, so {expected} rows of features belong to it, but "
                f"there are {rows}; the features were made for other answers: make them anew"
            )
