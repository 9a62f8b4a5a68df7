"""What the target keeps of a draft: pure functions from scores to tokens, changing nothing.

Greedy: the draft is kept while it equals the target's argmax, which then replaces it. Sampling has two exact rules
(docs/exactness.md), one formula with two kinds of q:

    keep the drafted d with probability min(1, p(d) / q(d)); else draw from max(p - q, 0), normalised

* ratio: d was drawn from q (Leviathan et al., arXiv 2211.17192, algorithm 1);
* point mass: d was not drawn, so q(d) = 1: d stays with probability p(d), and what replaces it is drawn from p
  without d.

Shapes: J drafted tokens, K verified places (J, and one more where there is a place for a bonus), V vocabulary. Scores
are float32, after all processors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from dflash_hf.drafter.heads.draft import draw

__all__ = ["cut_at_end_of_text", "keep_while_argmax", "keep_while_drawn"]


def _happens(chances: Tensor) -> Tensor:
    """True [n] with the given probabilities [n], which may exceed 1."""
    return torch.rand_like(chances) < chances


def keep_while_argmax(scores: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """Greedy: the target's tokens [K], and how many of ``drafted`` [J] they agree with before the first that differs.

    >>> scores = torch.eye(9)[[7, 8, 4, 5]]
    >>> [each.tolist() for each in keep_while_argmax(scores, torch.tensor([7, 8, 9]))]
    [[7, 8, 4, 5], 2]
    """
    picks = scores.argmax(dim=-1)
    return picks, (picks[: len(drafted)] == drafted).cumprod(dim=0).sum()


def keep_while_drawn(scores: Tensor, drafted: Tensor, q: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sampling: tokens [K] and how many of ``drafted`` [J] were kept; what stands behind the next token is void.

    Args:
        scores: the target's [K, V].
        drafted: the proposals [J].
        q: the probabilities [J, V] they were drawn from, or None for point masses.
    """
    p, count = torch.softmax(scores, dim=-1), len(drafted)
    if not count:
        return draw(p), drafted.new_zeros(())
    chances = p[:count].gather(1, drafted[:, None])
    if q is not None:
        chances = chances / q.gather(1, drafted[:, None])
    kept = _happens(chances.squeeze(1)).cumprod(dim=0).sum()
    here = kept.clamp(max=len(p) - 1).view(1)  # the one place a token is drawn for
    rest = _without_draft(p.index_select(0, here), drafted, q, kept)
    drawn = draw(rest)
    tokens = torch.cat([drafted, drawn])[: len(p)]
    return torch.where(torch.arange(len(p), device=p.device) == kept, drawn, tokens), kept


def _without_draft(p: Tensor, drafted: Tensor, q: Tensor | None, kept: Tensor) -> Tensor:
    """What to draw from [1, V] after ``kept`` drafted tokens: ``p`` [1, V], less the q of a token that was rejected."""
    last = kept.clamp(max=len(drafted) - 1).view(1)
    if q is None:
        rest = p.scatter(1, drafted.index_select(0, last)[:, None], 0.0)
    else:
        rest = (p - q.index_select(0, last)).clamp(min=0)
    # Where p equals q but for rounding nothing is left, and nothing is rejected but by rounding.
    rejected = (kept < len(drafted)) & (rest.sum() > 0)
    return torch.where(rejected, rest, p)


def cut_at_end_of_text(tokens: Sequence[int], ends: Collection[int]) -> list[int]:
    """``tokens`` up to and including the first that is in ``ends``.

    >>> cut_at_end_of_text([4, 2, 5], {2, 3})
    [4, 2]
    """
    for place, token in enumerate(tokens):
        if token in ends:
            return list(tokens[: place + 1])
    return list(tokens)
