"""Small random documents, and the slow truth about who sees whom in a pack of them."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_hf.training.documents import Document
from dflash_hf.training.features.features import Features

FORMS = ("dense", "flex", "chunked")


def document(length: int = 14, prompt: int = 5, name: str = "a") -> Document:
    generator = torch.Generator().manual_seed(length)
    return Document(name, torch.randint(2, 90, (length,), generator=generator), prompt)


def features(document: Document, width: int = 64, final: int | None = None) -> Features:
    generator = torch.Generator().manual_seed(len(document.ids) + 1)
    rows = len(document.ids) - 1
    return Features(
        torch.randn(rows, width, generator=generator),
        None if final is None else torch.randn(rows, final, generator=generator),
    )


def who_sees_whom(
    lengths: list[int],  # context rows of each document
    anchors: list[list[int]],  # of each document
    slots: int,
    window: int | None,
    causal: bool,
) -> Tensor:  # bool [Q, T + Q]
    """Nested loops over slots and keys."""
    context = [(number, place) for number, length in enumerate(lengths) for place in range(length)]
    blocks = [(number, anchor) for number, places in enumerate(anchors) for anchor in places]
    seen = torch.zeros(len(blocks) * slots, len(context) + len(blocks) * slots, dtype=torch.bool)
    for mine, (document, anchor) in enumerate(blocks):
        for slot in range(slots):
            at = anchor + slot
            for row, (other, place) in enumerate(context):
                near = window is None or at - place < window
                seen[mine * slots + slot, row] = other == document and place < anchor and near
            for other_slot in range(slots):
                forward = other_slot > slot and causal
                far = window is not None and abs(other_slot - slot) >= window
                key = len(context) + mine * slots + other_slot
                seen[mine * slots + slot, key] = not forward and not far
    return seen
