"""Which keys a slot of the block may see: the in-block rule and the window, as trained.

A drafter layer attends once over ``[context, block]``. The context lies wholly before the anchor, so it is always
visible but for a window; inside the block a layer is either bidirectional or causal. Shapes: Q slots, T keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["AttendWith", "BlockLayout", "attention_mask_for", "rule_allows", "visible_keys"]


class AttendWith(NamedTuple):
    """A mask together with the attention function it is made for, called as transformers calls its own.

    ``slots``: of a block, where several stand side by side in a row; None: a row is one block.
    """

    attend: Callable[..., Any]
    mask: Any
    slots: int | None = None


class BlockLayout(Protocol):
    """Who sees whom where a caller puts many blocks into one forward (``training.visibility``)."""

    def for_rule(self, window: int | None, causal: bool) -> AttendWith:
        """What layers of this rule attend with: the layout's own mask and :func:`rule_allows` together."""


def rule_allows(distance: Tensor, *, window: int | None, causal: bool) -> Tensor | None:
    """A layer's own rule for keys that lie ``distance`` positions back; None where everything is visible.

    ``window`` counts the positions a query sees on one side, its own included. Works element by element.
    """
    if not causal:
        return None if window is None else distance.abs() < window
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def visible_keys(
    query_positions: Tensor,  # [B, Q] positions of the block's slots
    key_positions: Tensor,  # [B, T] positions of the context rows, then of the block's slots
    *,
    window: int | None,
    causal: bool,
    rule: str = "query",  # what the window is counted from: ``DFlashConfig.window_rule``
) -> Tensor | None:  # bool [B, 1, Q, T], or None where everything is visible
    """Visibility by position alone, by :func:`rule_allows`.

    >>> at = torch.arange(6)[None]
    >>> visible_keys(at[:, 4:], at, window=3, causal=True).int().tolist()
    [[[[0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]]]]
    >>> visible_keys(at[:, 4:], at, window=3, causal=False, rule="anchor").int().tolist()
    [[[[0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]]]]
    """
    distance = query_positions[:, :, None] - key_positions[:, None, :]  # how far back a key lies
    if window is None or rule == "query":
        seen = rule_allows(distance, window=window, causal=causal)
        return None if seen is None else seen[:, None]
    slots = query_positions.shape[1]
    back = distance if rule == "context" else distance[:, :1].expand_as(distance)
    limit = window if rule == "context" else window + 1  # the anchor is no context row
    in_block = torch.ones_like(distance, dtype=torch.bool) if not causal else distance >= 0
    return torch.cat([back[..., :-slots] < limit, in_block[..., -slots:]], dim=-1)[:, None]


def attention_mask_for(implementation: str | None, seen: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """``seen`` as this attention implementation wants it: bool for sdpa, additive for eager, none for flash.

    Flash attention takes no mask; there the layer's own window and causal flag say the same (``drafter.attention``).
    """
    if seen is None or (implementation or "").startswith("flash"):
        return None
    if implementation == "sdpa":
        return seen
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
