"""The parallel head of DFlash v1: slots are independent of each other's proposals.

Its proposal is the argmax of each slot: a point mass. At temperature > 0 that is exact with "accept x with p(x)", and
keeps more than drawing: slots drawn each on its own make an incoherent block. Drawing is offered beside it.
"""

from __future__ import annotations

from torch import nn

from dflash_hf.drafter.heads.draft import Block, Draft, Warp, chances, draw, spread

__all__ = ["ParallelHead"]


class ParallelHead(nn.Module):
    """No weights of its own."""

    sequential = False  # whether a slot depends on the token proposed before it

    def propose(self, block: Block, warp: Warp | None = None) -> Draft:
        """Each slot's argmax; with ``warp``, drawn from what it makes of the slot's logits."""
        outputs = block.project(block.hidden_states)
        if warp is None:
            # Multiplier and soft cap are monotone: they wait until somebody asks.
            columns = outputs.argmax(dim=-1)
            tokens = columns if block.vocabulary is None else block.vocabulary[columns]
            return Draft(tokens, outputs, block.scale, block.vocabulary)
        q = chances(spread(block.scale(outputs)[0], block.vocabulary, block.vocab_size), warp)
        return Draft(draw(q)[None], outputs, block.scale, block.vocabulary, q[None])
