"""From the target's taps to the context features that a drafter's layers turn into keys and values.

    concat        F = norm(fc [tap_1 ; ... ; tap_L])                          DFlash
    adapter       the same over A tap_t, one A for all taps                   JetSpec
    normed        the same over norm_t(tap_t), a norm for each tap            Laguna
    mixed         F_i = norm(sum_t softmax(w_i)_t tap_t) for layer i          DFlare (arXiv 2606.02091)
    mixed_concat  F_i = norm(fc [...] + sum_t softmax(w_i)_t tap_t)           DFly (arXiv 2607.25852)
    gated         F = norm(sum_t softmax(g)_t norm_t(tap_t))                  AngelSpec's gated sum

Shapes: B rows, C context tokens, L taps, D drafter width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from dflash_hf.config import DFlashConfig

__all__ = ["Fusion"]


class Fusion(nn.Module):
    """All kinds; what a kind does not have is not there. Names of the weights are z-lab's where z-lab has them."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.layers, self.width = config.num_hidden_layers, config.target_hidden_size
        count, kind, eps = len(config.target_layer_ids), config.fusion, config.rms_norm_eps
        tap = config.hidden_size if kind == "adapter" else self.width
        if kind == "adapter":
            self.adapter = nn.Linear(self.width, tap, bias=False)
        if kind in ("normed", "gated"):
            self.tap_norms = nn.ModuleList(Qwen3RMSNorm(tap, eps=eps) for _ in range(count))
        if kind not in ("mixed", "gated"):
            self.fc = nn.Linear(count * tap, config.hidden_size, bias=False)
        if kind in ("mixed", "mixed_concat"):
            self.mix = nn.Parameter(torch.zeros(self.layers, count))
        if kind == "gated":
            self.gate = nn.Parameter(torch.zeros(count))
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=eps)

    def forward(self, taps: Tensor) -> list[Tensor]:
        """Features [B, C, D] of every layer, from taps [B, C, L * width]; the same tensor where layers share them."""
        pieces = taps.unflatten(-1, (-1, self.width))  # [B, C, L, width]
        if hasattr(self, "adapter"):
            pieces = self.adapter(pieces)
        if hasattr(self, "tap_norms"):
            pieces = torch.stack([norm(pieces[..., t, :]) for t, norm in enumerate(self.tap_norms)], dim=-2)
        joined = self.fc(pieces.flatten(-2)) if hasattr(self, "fc") else None
        if hasattr(self, "gate"):
            joined = (torch.softmax(self.gate, dim=-1)[:, None] * pieces).sum(dim=-2)
        if not hasattr(self, "mix"):
            return [self.norm(joined)] * self.layers
        mixed = [(weights[:, None] * pieces).sum(dim=-2) for weights in torch.softmax(self.mix, dim=-1)]
        return [self.norm(each if joined is None else joined + each) for each in mixed]
