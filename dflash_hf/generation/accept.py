"""What the target keeps of a draft: pure functions from scores to tokens, changing nothing.

Greedy: the draft is kept while it equals the target's argmax. Sampling with argmax proposals: the proposal is a point
mass, so "draw x from p, keep the draft while it equals x" accepts a drafted d with probability p(d) and otherwise
draws from p without d: the exact rule (docs/exactness.md). Both are therefore one rule over the target's own picks.
Shapes: J drafted tokens, K = J + 1 verified places, V vocabulary. Scores are float32, after all processors.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["agreeing_prefix", "cut_at_end_of_text", "pick"]


def pick(scores: Tensor, do_sample: bool) -> Tensor:
    """The target's own token [K] at each place of ``scores`` [K, V]: its argmax, or a draw."""
    if do_sample:
        return torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1).squeeze(-1)
    return scores.argmax(dim=-1)


def agreeing_prefix(draft: Tensor, picks: Tensor) -> Tensor:
    """How many drafted tokens [J] equal the target's picks [K] before the first that does not: a 0-d tensor.

    >>> agreeing_prefix(torch.tensor([7, 8, 9]), torch.tensor([7, 8, 4, 5])).item()
    2
    """
    return (draft == picks[: len(draft)]).long().cumprod(dim=0).sum()


def cut_at_end_of_text(committed: Tensor, eos: Tensor | None) -> Tensor:
    """``committed`` [m] up to and including its first end-of-text id.

    >>> cut_at_end_of_text(torch.tensor([4, 2, 5]), torch.tensor([2, 3])).tolist()
    [4, 2]
    """
    if eos is None:
        return committed
    ends = torch.isin(committed, eos.to(committed.device)).nonzero()
    return committed if len(ends) == 0 else committed[: int(ends[0]) + 1]
