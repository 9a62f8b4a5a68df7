"""One drafter forward over all blocks of a pack, the context injected once for all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_hf.drafter.context import TransientContext
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.target.view import TargetView
from dflash_hf.training.packs import Pack
from dflash_hf.training.visibility import lay_out

__all__ = ["draft_hidden"]


def draft_hidden(
    drafter: DFlashDrafter, view: TargetView, pack: Pack, form: str = "chunked", per_row: int = 16
) -> Tensor:  # [A, K, D]
    """The drafter's output for every block, after its final norm: what decoding would compute block by block.

    Args:
        form: of attention, "dense", "flex" or "chunked"; all give the same. See ``training.visibility``.
        per_row: blocks in a chunk of the chunked form.
    """
    with torch.no_grad():
        embeds = DFlashCandidateGenerator(drafter, view).embed(pack.ids)
    context = TransientContext()
    drafter.inject(pack.taps[None].to(drafter.dtype), pack.context_positions[None], context)
    output = drafter(
        embeds.flatten(0, 1)[None],
        attention_mask=lay_out(pack, form, per_row),
        position_ids=pack.positions.flatten()[None],
        cache=context,
    )
    return output.last_hidden_state.unflatten(1, pack.ids.shape)[0]
