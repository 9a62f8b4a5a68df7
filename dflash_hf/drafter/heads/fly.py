"""DFly's hidden correction (arXiv 2607.25852): the token proposed before is mixed into the slot's hidden state.

x = [norm_h(h) ; norm_e(e(p))]
h' = h + D (silu(G x) * U x)        then the LM head
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from dflash_hf.drafter.heads.chain import ChainHead, Slot
from dflash_hf.drafter.heads.draft import Block

__all__ = ["FlyHead"]


class FlyHead(ChainHead):
    """Args:
    width: D.
    inner: width between the gated projections and D.
    eps: of the norms.
    """

    def __init__(self, *, width: int, inner: int, eps: float) -> None:
        super().__init__()
        self.hidden_norm = Qwen3RMSNorm(width, eps=eps)
        self.embed_norm = Qwen3RMSNorm(width, eps=eps)
        self.gate_proj = nn.Linear(2 * width, inner, bias=False)
        self.up_proj = nn.Linear(2 * width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def slots(self, block: Block) -> Slot:
        def logits(row: int, token: Tensor) -> Tensor:
            hidden = block.hidden_states[:, row]
            embedded = block.embed(token)[:, 0].to(hidden.dtype)
            both = torch.cat([self.hidden_norm(hidden), self.embed_norm(embedded)], dim=-1)
            mixed = hidden + self.down_proj(nn.functional.silu(self.gate_proj(both)) * self.up_proj(both))
            return block.scale(block.project(mixed))

        return logits
