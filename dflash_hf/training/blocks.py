"""One drafter forward over many blocks of one document, the context injected once for all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_hf.drafter.context import TransientContext
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.target.view import TargetView
from dflash_hf.training.anchors import Blocks
from dflash_hf.training.documents import Document

__all__ = ["draft_hidden"]


def draft_hidden(drafter: DFlashDrafter, view: TargetView, document: Document, blocks: Blocks) -> Tensor:
    """The drafter's output [N, A, K, D], after its final norm."""
    config = drafter.config
    with torch.no_grad():
        embeds = view.embed(blocks.ids, config.embedding) * config.embedding_scale
    context = TransientContext()
    drafter.inject(document.taps[None], torch.arange(len(document.taps))[None], context)
    output = drafter(embeds, attention_mask=blocks.visible, position_ids=blocks.positions, cache=context)
    slots = blocks.labels.shape[-1] + 1
    return output.last_hidden_state.unflatten(1, (-1, slots))
