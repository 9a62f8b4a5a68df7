"""Cross-entropy with exponential position decay, over a vocabulary that need not be the whole one.

Slot k counts ``exp(-(k - 1) / gamma)``: a block is used up to its first mistake, so early slots matter most (paper,
appendix A.1: gamma 7, 5, 4 for blocks of 16, 10, 8).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["SampledHead", "position_weights", "weighted_cross_entropy"]


def position_weights(drafted: int, gamma: float) -> Tensor:
    """Weights [J] of the drafted slots, the first being 1."""
    return torch.exp(-torch.arange(drafted) / gamma)


class SampledHead:
    """The target's frozen head cut to the corpus' tokens plus a fresh sample of all others.

    The sampled rows stand for all others: their logits are raised by ``log(others / sample)``, which keeps the
    expected partition function that of the full head. At run time the drafter uses the full head.

    Args:
        weight: the head's rows [V, D].
        corpus: ids [n] that occur as labels, ascending.
        sample: how many of the other ids join each step; as many as there are makes it the full head.
    """

    def __init__(self, weight: Tensor, corpus: Tensor, sample: int) -> None:
        others = torch.ones(len(weight), dtype=torch.bool)
        others[corpus] = False
        self.weight, self.corpus, self.sample = weight, corpus, sample
        self._others = others.nonzero().flatten()
        self._place = torch.full((len(weight),), -100)
        self._place[corpus] = torch.arange(len(corpus))
        self._corpus_weight = weight[corpus]

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows [n + sample, D] and what to add to their logits [n + sample]."""
        count = min(self.sample, len(self._others))
        chosen = self._others[torch.randperm(len(self._others), generator=generator)[:count]]
        raised = torch.zeros(len(self.corpus) + count)
        if count:
            raised[len(self.corpus) :] = torch.log(torch.tensor(len(self._others) / count))
        return torch.cat([self._corpus_weight, self.weight[chosen]]), raised

    def place(self, labels: Tensor) -> Tensor:
        """Labels as rows of what :meth:`draw` returns; -100 stays."""
        return torch.where(labels >= 0, self._place[labels.clamp(min=0)], -100)


def weighted_cross_entropy(
    hidden: Tensor,  # [n, D]
    rows: Tensor,  # [R, D] head rows
    raised: Tensor,  # [R] added to the logits
    labels: Tensor,  # [n] row numbers, -100 ignored
    weights: Tensor,  # [n]
) -> tuple[Tensor, Tensor]:  # the weighted sum of losses, and the sum of weights that counted
    kept = labels != -100
    logits = hidden[kept] @ rows.T + raised
    losses = functional.cross_entropy(logits, labels[kept], reduction="none")
    return (losses * weights[kept]).sum(), weights[kept].sum()
