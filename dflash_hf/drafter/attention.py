"""A drafter layer's attention: one softmax over injected context and block.

Only slots of the block are queries. Context rows enter as ready keys and values. Keys are normed, values are not;
queries and keys carry absolute positions. What some dialects add is here in small parts: projections of the context's
own, an output gate, sinks, a factor on values.
Shapes: B rows, C context tokens, K slots, D width, H heads, G key/value heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, eager_attention_forward

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.context import DrafterContext
from dflash_hf.drafter.masks import AttendWith
from dflash_hf.drafter.rotary import Rotary, rotate

__all__ = ["DFlashAttention"]


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
        width, bias, heads = config.hidden_size, config.attention_bias, config.num_attention_heads
        keys = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, keys, bias=bias)
        self.v_proj = nn.Linear(width, keys, bias=bias)
        self.o_proj = nn.Linear(heads * self.head_dim, width, bias=bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        if config.context_projections:
            self.context_k_proj = nn.Linear(width, keys, bias=bias)
            self.context_v_proj = nn.Linear(width, keys, bias=bias)
        self.gate_proj = None
        if config.attention_gate is not None:
            gates = heads * (self.head_dim if config.attention_gate == "channel" else 1)
            self.gate_proj = nn.Linear(width, gates, bias=False)
        self.sinks = nn.Parameter(torch.zeros(heads)) if config.attention_sinks else None

    def inject(self, features: Tensor, rotary: Rotary, context: DrafterContext) -> None:
        """Write context features [B, C, D] into this layer's context as keys and values."""
        own = self.config.context_projections
        projections = (self.context_k_proj, self.context_v_proj) if own else (self.k_proj, self.v_proj)
        context.inject(self.layer_idx, *self._keys_values(features, rotary, *projections))

    def forward(
        self,
        hidden_states: Tensor,  # [B, K, D], normed
        rotary: Rotary,  # of the block's positions
        attention_mask: Tensor | AttendWith | None,
        context: DrafterContext,
    ) -> Tensor:  # [B, K, D]
        queries = self.q_norm(self._heads(self.q_proj(hidden_states))).transpose(1, 2)
        queries = rotate(queries, rotary, interleaved=self.config.rope_interleaved)
        own = self._keys_values(hidden_states, rotary, self.k_proj, self.v_proj)
        keys, values = context.with_block(self.layer_idx, *own)
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
        if self.gate_proj is not None:
            gates = nn.functional.softplus(self.gate_proj(hidden_states)).unflatten(-1, (output.shape[2], -1))
            output = output * gates.to(output.dtype)
        return self.o_proj(output.flatten(2))

    def _heads(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (-1, self.head_dim))

    def _keys_values(
        self, states: Tensor, rotary: Rotary, k_proj: nn.Module, v_proj: nn.Module
    ) -> tuple[Tensor, Tensor]:
        """Keys and values [B, G, rows, E] of ``states`` [B, rows, D]: context features or normed slots."""
        keys = self.k_norm(self._heads(k_proj(states))).transpose(1, 2)
        values = self._heads(v_proj(states)).transpose(1, 2)
        if self.config.value_scale != 1.0:
            values = values * self.config.value_scale
        return rotate(keys, rotary, interleaved=self.config.rope_interleaved), values

    def _attend_with(self, attention_mask: Tensor | AttendWith | None) -> tuple[Callable[..., Any], Any]:
        if isinstance(attention_mask, AttendWith):
            return attention_mask.attend, attention_mask.mask
        if self.sinks is not None:
            return _attend_with_sinks, attention_mask
        implementation = self.config._attn_implementation
        return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward), attention_mask


def _attend_with_sinks(
    module: DFlashAttention, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    """Attention [B, K, H, E] whose softmax has one more logit a head, which draws nothing in.

    ``mask`` is bool (True is visible) or additive, as for the layer's own attention implementation.
    """
    assert module.sinks is not None
    rows, heads, slots, _width = queries.shape
    keys, values = (part.repeat_interleave(module.num_key_value_groups, dim=1) for part in (keys, values))
    scores = queries.float() @ keys.float().transpose(-1, -2) * module.scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    sinks = module.sinks.float().view(1, heads, 1, 1).expand(rows, heads, slots, 1)
    weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    return (weights @ values.float()).to(queries.dtype).transpose(1, 2), None
