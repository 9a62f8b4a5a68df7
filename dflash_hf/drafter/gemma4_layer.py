"""A drafter layer of Gemma 4's shape: norms before and after each sublayer, and a factor on what comes out.

    h = x + norm_2(attention(norm_1(x)))        out = (h + norm_4(mlp(norm_3(h)))) * scalar

Attention is not scaled; values are normed without a weight, and may be the keys' projection, taken before the keys'
norm and positions. Source: deepseek-ai/DeepSpec at afdfa7c, ``deepspec/modeling/dspark/gemma4``.
Shapes: B rows, K slots, D width, G key/value heads, E head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.attention import DFlashAttention
from dflash_hf.drafter.context import DrafterContext
from dflash_hf.drafter.layer import DFlashDecoderLayer
from dflash_hf.drafter.masks import AttendWith
from dflash_hf.drafter.rotary import Rotary, rotate

__all__ = ["Gemma4Attention", "Gemma4Layer"]


class Gemma4Attention(DFlashAttention):
    """Attention without a scale, whose values are normed."""

    v_proj: nn.Linear | None  # type: ignore[assignment]

    def __init__(self, config: DFlashConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.scaling = 1.0
        self.v_norm = Gemma4RMSNorm(self.head_dim, eps=config.rms_norm_eps, with_scale=False)
        if config.keys_as_values:
            self.v_proj = None

    def _keys_values(
        self, states: Tensor, rotary: Rotary, k_proj: nn.Module, v_proj: nn.Module | None
    ) -> tuple[Tensor, Tensor]:
        projected = self._heads(k_proj(states))
        values = projected if v_proj is None else self._heads(v_proj(states))
        keys = self.k_norm(projected).transpose(1, 2)
        return rotate(keys, rotary, interleaved=False), self.v_norm(values).transpose(1, 2)


class Gemma4Layer(DFlashDecoderLayer):
    """The same two doors as any drafter layer."""

    attention_class = Gemma4Attention

    def __init__(self, config: DFlashConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = Gemma4RMSNorm(width, eps=eps)
        self.post_attention_layernorm = Gemma4RMSNorm(width, eps=eps)
        self.pre_feedforward_layernorm = Gemma4RMSNorm(width, eps=eps)
        self.post_feedforward_layernorm = Gemma4RMSNorm(width, eps=eps)
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary,
        attention_mask: Tensor | AttendWith | None,
        context: DrafterContext,
    ) -> Tensor:
        attended = self.self_attn(self.input_layernorm(hidden_states), rotary, attention_mask, context)
        hidden_states = hidden_states + self.post_attention_layernorm(attended)
        wide = self.mlp(self.pre_feedforward_layernorm(hidden_states))
        scaled: Tensor = (hidden_states + self.post_feedforward_layernorm(wide)) * self.layer_scalar
        return scaled
