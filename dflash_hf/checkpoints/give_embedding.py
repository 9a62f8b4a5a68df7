"""Gives a drafter that borrows its target's embedding a table of its own, for layouts that want one."""

from __future__ import annotations

from copy import deepcopy

import torch
from transformers import PreTrainedModel

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.drafter.redescribed import redescribed
from dflash_hf.errors import CheckpointError
from dflash_hf.target.pairing import pair_view

__all__ = ["with_own_embedding"]


@torch.no_grad()
def with_own_embedding(drafter: DFlashDrafter, target: PreTrainedModel) -> DFlashDrafter:
    """A drafter that drafts the same and shares all weights of ``drafter``, with an embedding of its own.

    Its rows [V, D] are the target's as this drafter sees them: scaled by the target and by ``embedding_scale``, or raw.

    Raises:
        IncompatiblePairError: the two do not fit.
        CheckpointError: the drafter's other tables have more rows than the target has ids.
    """
    view, config = pair_view(target, drafter), deepcopy(drafter.config)
    if config.embedding == "own":
        return drafter
    rows = view.vocab_rows if config.stored_vocab_size is None else int(config.stored_vocab_size)
    if rows > view.vocab_rows:
        raise CheckpointError(f"the drafter is of {rows} ids, {view.public_name} embeds {view.vocab_rows}")
    table = view.embed(torch.arange(rows)[None], config.embedding)[0] * config.embedding_scale
    config.embedding, config.embedding_scale, config.stored_vocab_size = "own", 1.0, rows
    return redescribed(drafter, config, {"embed_tokens.weight": table.to(drafter.device, drafter.dtype)})
