"""The same weights under another description, in memory: what would a drafter do if its files said otherwise?"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter

__all__ = ["redescribed"]


def redescribed(
    drafter: DFlashDrafter, config: DFlashConfig, more: Mapping[str, Tensor] | None = None
) -> DFlashDrafter:
    """A drafter of ``config`` that shares the weights of ``drafter``, which stays as it is.

    Args:
        drafter: whose weights.
        config: one that asks for the same tensors, ``more`` included.
        more: tensors by name that ``drafter`` does not have.
    """
    with torch.device("meta"):
        made = DFlashDrafter(config)
    made.load_state_dict({**drafter.state_dict(), **(more or {})}, strict=True, assign=True)
    made.make_rotary()  # anew: on the meta device its frequencies had no values
    made.rotary_emb.to(drafter.device)
    made.context_rotary_emb.to(drafter.device)
    made.provenance = drafter.provenance
    return made.eval()
