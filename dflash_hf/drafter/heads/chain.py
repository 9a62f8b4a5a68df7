"""Heads whose slots depend on the token proposed before: one walk from the anchor on, for all of them.

A head says what the logits of a slot are, given the token before it; the walk picks or draws, slot by slot.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dflash_hf.drafter.heads.draft import Block, Draft, Warp, chances, draw, spread

__all__ = ["ChainHead", "Slot"]

Slot = Callable[[int, Tensor], Tensor]  # row number from 0, token before it [1, 1] -> float32 logits [1, W]


class ChainHead(nn.Module):
    """A head that walks. A subclass gives :meth:`slots`; it may give :meth:`vocabulary` as well."""

    sequential = True

    def slots(self, block: Block) -> Slot:
        """The logits of this block's slots, to be asked for in order."""
        raise NotImplementedError

    def propose(self, block: Block, warp: Warp | None = None) -> Draft:
        """Walk: each slot's argmax, or with ``warp`` a draw, decides what the next slot follows."""
        logits_of, token = self.slots(block), block.anchor
        tokens, rows, drawn = list[Tensor](), list[Tensor](), list[Tensor]()
        for row in range(block.hidden_states.shape[1]):
            logits = logits_of(row, token)
            if warp is None:
                column = logits.argmax(dim=-1)
                token = (column if block.vocabulary is None else block.vocabulary[column])[:, None]
            else:
                q = chances(spread(logits, block.vocabulary, block.vocab_size), warp)
                token = draw(q)[:, None]
                drawn.append(q)
            tokens.append(token)
            rows.append(logits)
        joint = torch.stack(drawn, dim=1) if drawn else None
        return Draft(torch.cat(tokens, dim=1), torch.stack(rows, dim=1), None, block.vocabulary, joint)
