"""The Markov head of DSpark (arXiv 2607.05147): a low-rank bias from the token proposed before.

    vanilla  bias = W2 e(p)                                     e(p): row p of markov_w1
    gated    bias = W2 (sigmoid(G [h ; e(p)]) * e(p))
    rnn      z = J [s ; e(p) ; h] = [g, c, o];  s <- sigmoid(g) s + (1 - sigmoid(g)) tanh(c);  bias = W2 tanh(o)

h is the slot's hidden state after the final norm, s starts at zero in every block: at slot 0, which is trained with the
anchor as p whether it proposes or not. The confidence head gives a logit of
"this slot's proposal will be kept" from h, and e(p) where it was trained with it; it may shorten a draft, and changes
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dflash_hf.drafter.heads.chain import ChainHead, Slot
from dflash_hf.drafter.heads.draft import Block, Draft, Warp

__all__ = ["MARKOV_TYPES", "MarkovHead"]

MARKOV_TYPES = ("vanilla", "gated", "rnn")
Bias = Callable[[Tensor, Tensor], Tensor]  # hidden state [1, D], embedding of the token before [1, r] -> bias [1, W]


class MarkovHead(ChainHead):
    """Args:
    width: D.
    rank: r; 0 for a confidence head alone, which reads h.
    kind: one of ``MARKOV_TYPES``.
    tokens: ids that may stand before a slot: the target's.
    columns: W, of the LM head.
    confidence: whether there is a confidence head, and whether it reads e(p) too: None, "hidden" or "both".
    """

    def __init__(
        self, *, width: int, rank: int, kind: str, tokens: int, columns: int, confidence: str | None = None
    ) -> None:
        super().__init__()
        self.kind, self.rank = kind, rank
        if rank:
            self.markov_w1 = nn.Embedding(tokens, rank)
            self.markov_w2 = nn.Linear(rank, columns, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(width + rank, rank)
        elif kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)
        self.reads_token = confidence == "both"
        self.confidence_proj = None
        if confidence is not None:
            self.confidence_proj = nn.Linear(width + (rank if self.reads_token else 0), 1)

    def propose(self, block: Block, warp: Warp | None = None) -> Draft:
        """As every chain, and no longer than the confidence head expects to be kept; one token at the least.

        Whether a slot is left out is decided from the token before it, never from its own: q stays the q of what was
        drawn.
        """
        draft = super().propose(block, warp)
        if not block.least_confidence:
            return draft
        before = torch.cat([block.anchor, draft.tokens[:, :-1]], dim=1)
        logits = self.confidence(block.hidden_states, before)
        if logits is None:
            return draft
        reached = torch.sigmoid(logits.float()[0]).cumprod(dim=0) >= block.least_confidence  # falls from slot to slot
        return draft.first(max(1, int(reached.sum())))

    def slots(self, block: Block) -> Slot:
        hidden = block.hidden_states
        backbone = block.scale(block.project(hidden))
        if not self.rank:
            return lambda row, token: backbone[:, row]
        bias = self.bias()
        if self.kind == "rnn" and block.skipped is not None:
            for slot in block.skipped.unbind(dim=1):
                bias(slot, self.markov_w1(block.anchor[:, 0]))

        def logits(row: int, token: Tensor) -> Tensor:
            return backbone[:, row] + bias(hidden[:, row], self.markov_w1(token[:, 0])).float()

        return logits

    def bias(self) -> Bias:
        """The bias of one block's slots, to be asked for in order."""
        if self.kind == "vanilla":
            return lambda hidden, embedded: self.markov_w2(embedded)
        if self.kind == "gated":
            return self._gated
        state: list[Any] = [None]

        def recurrent(hidden: Tensor, embedded: Tensor) -> Tensor:
            before = torch.zeros_like(embedded) if state[0] is None else state[0]
            gate, candidate, out = self.joint_proj(torch.cat([before, embedded, hidden], dim=-1)).chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            state[0] = gate * before + (1 - gate) * torch.tanh(candidate)
            return self.markov_w2(torch.tanh(out))

        return recurrent

    def _gated(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate_proj(torch.cat([hidden, embedded], dim=-1)))
        return self.markov_w2(gate * embedded)

    def confidence(self, hidden_states: Tensor, before: Tensor) -> Tensor | None:
        """Logits [1, J] that each slot's proposal is kept, ``before`` [1, J] being the tokens before the slots."""
        if self.confidence_proj is None:
            return None
        read = torch.cat([hidden_states, self.markov_w1(before)], dim=-1) if self.reads_token else hidden_states
        return self.confidence_proj(read)[..., 0]
