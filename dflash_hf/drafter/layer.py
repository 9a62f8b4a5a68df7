"""One drafter layer of Qwen3 shape: norm, attention, norm, MLP, each added to the residual stream.

Shapes: B rows, C context tokens, K slots, D width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.attention import DFlashAttention
from dflash_hf.drafter.context import DrafterContext
from dflash_hf.drafter.convolution import BlockConvolution
from dflash_hf.drafter.masks import AttendWith
from dflash_hf.drafter.rotary import Rotary

__all__ = ["DFlashDecoderLayer"]


class DFlashDecoderLayer(nn.Module):
    """A layer in two doors: :meth:`inject` for context features, :meth:`forward` for a block."""

    attention_class: type[DFlashAttention] = DFlashAttention

    def __init__(self, config: DFlashConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = self.attention_class(config, layer_idx)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._norms_context = config.context_input_norm
        self.attention_conv = self.mlp_conv = None
        if config.convolution is not None:
            self.attention_conv = BlockConvolution(config.hidden_size, **config.convolution)
            self.mlp_conv = BlockConvolution(config.hidden_size, **config.convolution)

    def inject(self, features: Tensor, rotary: Rotary, context: DrafterContext) -> None:
        """Write context features [B, C, D] into the context; only some dialects norm them as they norm slots."""
        self.self_attn.inject(self.input_layernorm(features) if self._norms_context else features, rotary, context)

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary,
        attention_mask: Tensor | AttendWith | None,
        context: DrafterContext,
    ) -> Tensor:
        def attend(states: Tensor) -> Tensor:
            attended: Tensor = self.self_attn(states, rotary, attention_mask, context)
            return attended

        slots = attention_mask.slots if isinstance(attention_mask, AttendWith) else None
        normed = self.input_layernorm(hidden_states)
        hidden_states = hidden_states + _convolved(self.attention_conv, attend, normed, slots)
        normed = self.post_attention_layernorm(hidden_states)
        return hidden_states + _convolved(self.mlp_conv, self.mlp, normed, slots)


def _convolved(
    convolution: BlockConvolution | None, sublayer: Callable[[Tensor], Tensor], normed: Tensor, slots: int | None
) -> Tensor:
    """``slots``: of a block, where rows [B, K, D] hold several; a convolution ends with its block."""
    if convolution is None:
        return sublayer(normed)
    blocks = (-1, slots or normed.shape[1], normed.shape[-1])
    before, after = convolution.kernels(normed.reshape(blocks))
    told = sublayer(convolution.along(normed.reshape(blocks), before).view_as(normed))
    return convolution.along(told.reshape(blocks), after).view_as(normed)
