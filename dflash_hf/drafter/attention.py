"""One drafter layer: attention with one softmax over injected context and block, and the MLP after it.

Only slots of the block are queries. Context rows enter as ready keys and values; they never pass through
``input_layernorm``. Keys are normed, values are not; queries and keys carry absolute positions.
Shapes: B rows, C context tokens, K slots, D width, H heads, G key/value heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    eager_attention_forward,
    rotate_half,
)

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.context import DrafterContext
from dflash_hf.drafter.masks import AttendWith

__all__ = ["DFlashAttention", "DFlashDecoderLayer", "Rotary"]

Rotary = tuple[Tensor, Tensor]  # cos and sin, each [B, rows, E]


def _rotate(states: Tensor, rotary: Rotary) -> Tensor:
    """Apply absolute positions to ``states`` [B, heads, rows, E]."""
    cos, sin = (part.unsqueeze(1) for part in rotary)
    return states * cos + rotate_half(states) * sin


class DFlashAttention(nn.Module):
    """Attention of one layer, in two doors: :meth:`inject` for context, :meth:`forward` for a block."""

    def __init__(self, config: DFlashConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.is_causal = config.layer_causal[layer_idx]
        self.window = config.layer_windows[layer_idx]
        width, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(width, config.num_attention_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, width, bias=bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def _heads(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (-1, self.head_dim))

    def keys_values(self, states: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Keys and values [B, G, rows, E] of ``states`` [B, rows, D]: context features or normed slots."""
        keys = self.k_norm(self._heads(self.k_proj(states))).transpose(1, 2)
        values = self._heads(self.v_proj(states)).transpose(1, 2)
        return _rotate(keys, rotary), values

    def inject(self, features: Tensor, rotary: Rotary, context: DrafterContext) -> None:
        """Write context features [B, C, D] into this layer's context as keys and values."""
        context.inject(self.layer_idx, *self.keys_values(features, rotary))

    def forward(
        self,
        hidden_states: Tensor,  # [B, K, D], normed
        rotary: Rotary,  # of the block's positions
        attention_mask: Tensor | AttendWith | None,
        context: DrafterContext,
    ) -> Tensor:  # [B, K, D]
        queries = _rotate(self.q_norm(self._heads(self.q_proj(hidden_states))).transpose(1, 2), rotary)
        keys, values = context.with_block(self.layer_idx, *self.keys_values(hidden_states, rotary))
        attend, mask = self._attend_with(attention_mask)
        output, _ = attend(
            self,
            queries,
            keys,
            values,
            mask,
            dropout=0.0,
            scaling=self.scaling,
            sliding_window=self.window,
            is_causal=self.is_causal and mask is None,
        )
        return self.o_proj(output.flatten(2))

    def _attend_with(self, attention_mask: Tensor | AttendWith | None) -> tuple[Callable[..., Any], Any]:
        if isinstance(attention_mask, AttendWith):
            return attention_mask
        implementation = self.config._attn_implementation
        return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward), attention_mask


class DFlashDecoderLayer(nn.Module):
    """Pre-norm layer of Qwen3 shape."""

    def __init__(self, config: DFlashConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = DFlashAttention(config, layer_idx)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary,
        attention_mask: Tensor | AttendWith | None,
        context: DrafterContext,
    ) -> Tensor:
        attended = self.self_attn(self.input_layernorm(hidden_states), rotary, attention_mask, context)
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
