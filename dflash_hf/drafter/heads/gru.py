"""Domino's head (arXiv 2605.29707): a GRU over the tokens proposed so far corrects the logits.

    s = GRU(embeddings of anchor, first proposal, ...)     no biases, one layer
    logits = backbone + P2 silu(P1 [h ; s])                from the slot on where the correction starts

Before that slot the backbone stands alone; its tokens feed the GRU all the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dflash_hf.drafter.heads.chain import ChainHead, Slot
from dflash_hf.drafter.heads.draft import Block

__all__ = ["GruHead"]


class GruHead(ChainHead):
    """Args:
    width: D, also of the embeddings the GRU reads.
    hidden, bottleneck: of the GRU's state, and between P1 and P2.
    columns: W.
    first_corrected: the slot of the block, 0 being the anchor's, from which the correction is added.
    """

    def __init__(self, *, width: int, hidden: int, bottleneck: int, columns: int, first_corrected: int) -> None:
        super().__init__()
        self.first_corrected = first_corrected
        self.prefix_gru = nn.GRU(width, hidden, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(width + hidden, bottleneck, bias=False), nn.SiLU(), nn.Linear(bottleneck, columns, bias=False)
        )

    def slots(self, block: Block) -> Slot:
        hidden = block.hidden_states
        backbone = block.scale(block.project(hidden))
        state: list[Tensor | None] = [None]

        def logits(row: int, token: Tensor) -> Tensor:
            embedded = block.embed(token).to(hidden.dtype)
            output, state[0] = self.prefix_gru(embedded, state[0])
            if block.first_slot + row < self.first_corrected:
                return backbone[:, row]
            correction = self.embed_proj(torch.cat([hidden[:, row], output[:, -1]], dim=-1))
            return backbone[:, row] + correction.float()

        return logits
