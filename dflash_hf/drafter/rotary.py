"""Absolute positions for queries and keys: halves or neighbouring pairs, of the whole head or its first part.

Shapes: B rows, E head dim, R rotated part of it.
"""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, rotate_half

from dflash_hf.config import DFlashConfig

__all__ = ["Rotary", "rotary_for", "rotate"]

Rotary = tuple[Tensor, Tensor]  # cos and sin, each [B, rows, R]


def rotary_for(config: DFlashConfig, theta: float | None = None) -> nn.Module:
    """The host's rotary embedding for the part of a head that is rotated; ``theta`` in the place of the config's.

    ``rope_parameters`` may hold ``partial_rotary_factor``: the part of a head that is rotated, or with Gemma 4's
    ``proportional`` positions the share of pairs, which keep the frequencies of a whole head.
    """
    rope = dict(config.rope_parameters)
    part = 1.0 if rope["rope_type"] == "proportional" else rope.pop("partial_rotary_factor", 1.0)
    shaped = copy(config)
    shaped.rope_parameters = rope if theta is None else rope | {"rope_theta": theta}
    shaped.head_dim = int(config.head_dim * part)
    return Qwen3RotaryEmbedding(shaped)


def rotate(states: Tensor, rotary: Rotary, *, interleaved: bool) -> Tensor:
    """``states`` [B, heads, rows, E] at their positions."""
    cos, sin = (part.unsqueeze(1) for part in rotary)
    width = cos.shape[-1]
    turned, rest = states[..., :width], states[..., width:]
    if interleaved:
        cos, sin = (part[..., : width // 2].repeat_interleave(2, dim=-1) for part in (cos, sin))
        swapped = torch.stack([-turned[..., 1::2], turned[..., 0::2]], dim=-1).flatten(-2)
    else:
        swapped = rotate_half(turned)
    turned = turned * cos + swapped * sin
    return turned if not rest.shape[-1] else torch.cat([turned, rest], dim=-1)
