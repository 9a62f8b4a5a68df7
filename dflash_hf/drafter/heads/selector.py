"""DFlash 2's candidate selector: one path through the best few candidates of each slot.

    score(c | p) = unary(c) + <A[p] * (W h), B[c]>     c among the top K of the slot's logits, p the token before it

unary is the logit after multiplier and soft cap, h the slot's hidden state after the final norm, A and B the
predecessors' and successors' codebooks. The softmax over a slot's K scores is the q its token is drawn from.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dflash_hf.drafter.heads.draft import Block, Draft, Warp, chances, draw, spread

__all__ = ["SelectorHead"]


class SelectorHead(nn.Module):
    """Args:
    width: D.
    rank: of the codebooks.
    top_k: K.
    tokens: rows of the codebooks: the target's vocabulary.
    """

    sequential = True

    def __init__(self, *, width: int, rank: int, top_k: int, tokens: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.hidden_projection = nn.Linear(width, rank, bias=False)
        self.predecessor_codebook = nn.Embedding(tokens, rank)
        self.successor_codebook = nn.Embedding(tokens, rank)

    def propose(self, block: Block, warp: Warp | None = None) -> Draft:
        """Walk: the best candidate of each slot, or with ``warp`` one drawn from the K scores."""
        logits = block.scale(block.project(block.hidden_states))
        unary, columns = logits.topk(min(self.top_k, logits.shape[-1]), dim=-1)  # [1, J, K]
        candidates = columns if block.vocabulary is None else block.vocabulary[columns]
        projected, successors = self.hidden_projection(block.hidden_states), self.successor_codebook(candidates)
        token, tokens, rows, drawn = block.anchor, list[Tensor](), list[Tensor](), list[Tensor]()
        for slot in range(logits.shape[1]):
            reading = self.predecessor_codebook(token[:, 0]) * projected[:, slot]
            scores = unary[:, slot] + (successors[:, slot] @ reading[..., None])[..., 0].float()
            if warp is None:
                token = candidates[:, slot].gather(1, scores.argmax(dim=-1, keepdim=True))
            else:
                q = chances(spread(scores, candidates[:, slot], block.vocab_size), warp)
                token = draw(q)[:, None]
                drawn.append(q)
            tokens.append(token)
            rows.append(scores)
        joint = torch.stack(drawn, dim=1) if drawn else None
        return Draft(torch.cat(tokens, dim=1), torch.stack(rows, dim=1), None, candidates, joint)
