"""From hidden states of a block to proposals: the parallel head of DFlash v1.

Slots are independent, so the proposal is the argmax of each: a point mass. At temperature > 0 that is exact with
"accept x with p(x)", and keeps more than drawing: slots drawn each on its own make an incoherent block. Drawing is
offered beside it, with the ratio rule (``generation.accept``).
Shapes: B rows, K slots, J drafted tokens (at most K - 1), D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Draft", "draft_logits", "draw", "draw_parallel", "propose_parallel"]


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals of one round. ``q`` is None for point masses: what was proposed was not drawn."""

    tokens: Tensor  # [B, J] ids, in order after the anchor
    logits: Tensor  # [B, J, V] of the drafter, before multiplier and soft cap
    q: Tensor | None = None  # [B, J, V] float32, the probabilities that the tokens were drawn from


def propose_parallel(
    hidden_states: Tensor,  # [B, K, D] after the drafter's final norm, slot 0 being the anchor
    project: Callable[[Tensor], Tensor],  # the target's LM head
    count: int,  # J
) -> Draft:
    """Slots 1..J through the head, each its argmax. Multiplier and soft cap are monotone and left for later."""
    logits = project(hidden_states[:, 1 : 1 + count])
    return Draft(tokens=logits.argmax(dim=-1), logits=logits)


def draw_parallel(draft: Draft, scores: Tensor) -> Draft:
    """The same slots, each drawn on its own from its softmax; ``scores`` [J, V] are the drafter's, warped."""
    q = torch.softmax(scores.float(), dim=-1)
    return Draft(tokens=draw(q)[None], logits=draft.logits, q=q[None])


def draw(probabilities: Tensor) -> Tensor:
    """One token [n] from each row of ``probabilities`` [n, V]; rows need not be normalised."""
    return torch.multinomial(probabilities, num_samples=1).squeeze(-1)


def draft_logits(logits: Tensor, multiplier: float, softcap: float | None) -> Tensor:
    """The drafter's own logits in float32, as its authors define them: multiplier first, then the soft cap.

    >>> draft_logits(torch.tensor([4.0]), 0.5, 2.0).mul(1000).round().tolist()
    [1523.0]
    """
    logits = logits.float() * multiplier
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap
