"""Which keys a slot of the block may see: the in-block rule and the window, as trained.

A drafter layer attends once over ``[context, block]``. The context lies wholly before the anchor, so it is always
visible but for a window; inside the block a layer is either bidirectional or causal. Shapes: Q slots, T keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["attention_mask_for", "visible_keys"]


def visible_keys(
    query_positions: Tensor,  # [B, Q] positions of the block's slots
    key_positions: Tensor,  # [B, T] positions of the context rows, then of the block's slots
    *,
    window: int | None,
    causal: bool,
) -> Tensor | None:  # bool [B, 1, Q, T], or None where everything is visible
    """Visibility by position alone: ``window`` counts the positions a query sees on one side, its own included.

    >>> at = torch.arange(6)[None]
    >>> visible_keys(at[:, 4:], at, window=3, causal=True).int().tolist()
    [[[[0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]]]]
    """
    if window is None and not causal:
        return None
    distance = query_positions[:, :, None] - key_positions[:, None, :]  # how far back a key lies
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        seen = seen & (distance.abs() < window)
    return seen[:, None]


def attention_mask_for(implementation: str | None, seen: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """``seen`` as this attention implementation wants it: bool for sdpa, additive for eager, none for flash.

    Flash attention takes no mask; there the layer's own window and causal flag say the same (``drafter.attention``).
    """
    if seen is None or (implementation or "").startswith("flash"):
        return None
    if implementation == "sdpa":
        return seen
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
