"""What the target keeps of a draft: pure functions from scores to tokens, changing nothing.

Greedy: the draft is kept while it equals the target's argmax. Sampling with argmax proposals: the proposal is a point
mass, so "draw x from p, keep the draft while it equals x" accepts a drafted d with probability p(d) and otherwise
draws from p without d: the exact rule (docs/exactness.md). Both are therefore one rule over the target's own picks.
Shapes: J drafted tokens, K = J + 1 verified places, V vocabulary. Scores are float32, after all processors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

__all__ = ["agreeing_prefix", "cut_at_end_of_text", "pick"]


def pick(scores: Tensor, do_sample: bool) -> Tensor:
    """The target's own token [K] at each place of ``scores`` [K, V]: its argmax, or a draw."""
    if do_sample:
        return torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1).squeeze(-1)
    return scores.argmax(dim=-1)


def agreeing_prefix(draft: Sequence[int], picks: Sequence[int]) -> int:
    """How many of the J drafted tokens equal the target's K picks before the first that does not.

    >>> agreeing_prefix([7, 8, 9], [7, 8, 4, 5])
    2
    """
    agreed = 0
    for drafted, own in zip(draft, picks, strict=False):
        if drafted != own:
            break
        agreed += 1
    return agreed


def cut_at_end_of_text(tokens: Sequence[int], ends: Collection[int]) -> list[int]:
    """``tokens`` up to and including the first that is in ``ends``.

    >>> cut_at_end_of_text([4, 2, 5], {2, 3})
    [4, 2]
    """
    for place, token in enumerate(tokens):
        if token in ends:
            return list(tokens[: place + 1])
    return list(tokens)
