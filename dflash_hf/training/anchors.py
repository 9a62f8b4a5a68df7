"""Which tokens of a document are anchors: places [n], ascending, counted from the document's first token."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_hf.training.documents import Document
from dflash_hf.training.seeds import generator_for

__all__ = ["draw_anchors", "valid_anchors"]


def valid_anchors(document: Document) -> Tensor:
    """Places [n] of answer tokens that have a successor: the first anchor at run time is the first answer token."""
    return torch.arange(len(document.ids) - 1)[document.prompt_length :]


def draw_anchors(document: Document, count: int, seed: int | str) -> Tensor:
    """At most ``count`` of the valid anchors, ascending; all of them for 0.

    The draw depends on ``seed`` and the document's id alone. Give another seed each time the document comes up.
    Sampling per document keeps short answers in: a sample over a whole pack would mostly miss them.
    """
    anchors = valid_anchors(document)
    if not 0 < count < len(anchors):
        return anchors
    order = torch.randperm(len(anchors), generator=generator_for("anchors", seed, document.id))
    return anchors[order[:count].sort().values]
