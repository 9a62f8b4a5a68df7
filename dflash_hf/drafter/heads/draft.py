"""What a head hands out, and what it works from.

A head proposes either the likeliest tokens (point masses) or draws them; of drawn ones it also hands out q, the
probabilities they were drawn from, so that the ratio rule stays exact (``generation.accept``). Where a slot depends on
the token chosen before it, its row of q is the one given that token.
Shapes: B rows, J drafted tokens, D width, V vocabulary, W columns of a head (V, a reduced vocabulary, or candidates).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Block", "Draft", "Warp", "chances", "draw", "scaled_logits", "spread"]

Warp = Callable[[Tensor], Tensor]  # float32 logits [n, V] -> what is drawn from, as a sampling call's warpers have it


@dataclass(frozen=True, slots=True)
class Block:
    """A drafted block, from the slots that propose on."""

    hidden_states: Tensor  # [1, J, D] after the drafter's final norm; row 0 proposes the first token
    first_slot: int  # number of row 0's slot in the block: 0 is the anchor's
    anchor: Tensor  # [1, 1] id
    project: Callable[
        [Tensor], Tensor
    ]  # hidden states [..., D] -> the head's output [..., W], neither scaled nor capped
    scale: Callable[[Tensor], Tensor]  # that output -> float32 logits
    embed: Callable[[Tensor], Tensor]  # ids [1, n] -> embeddings [1, n, D], as the block's own slots have them
    vocab_size: int  # V, of the target's logits
    vocabulary: Tensor | None = None  # ids [W] of the head's columns; None: column = id
    least_confidence: float = 0.0  # a head that can tell ends its draft where it expects less than this to be kept
    skipped: Tensor | None = None  # [1, first_slot, D] of the slots before row 0


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals of one round. ``q`` is None for point masses: what was proposed was not drawn."""

    tokens: Tensor  # [1, J] ids, in order after the anchor
    outputs: Tensor  # [1, J, W] of the head; ``logits`` makes float32 logits of them
    scale: Callable[[Tensor], Tensor] | None = None  # None: they are float32 logits already
    vocabulary: Tensor | None = None  # ids [W] or [1, J, W] of the columns; None: column = id
    q: Tensor | None = None  # [1, J, V] float32, the probabilities that the tokens were drawn from

    @property
    def logits(self) -> Tensor:
        """The drafter's own float32 logits [1, J, W], each row given the tokens proposed before it."""
        return self.outputs if self.scale is None else self.scale(self.outputs)

    def first(self, count: int) -> Draft:
        """The draft cut to its first ``count`` tokens. What is cut must not be decided by the tokens that go."""
        vocabulary = self.vocabulary
        if vocabulary is not None and vocabulary.dim() == 3:
            vocabulary = vocabulary[:, :count]
        q = None if self.q is None else self.q[:, :count]
        return Draft(self.tokens[:, :count], self.outputs[:, :count], self.scale, vocabulary, q)

    def probabilities(self) -> Tensor:
        """The drafter's probability [J] of each token it proposed."""
        if self.q is not None:
            return self.q[0].gather(1, self.tokens[0][:, None]).flatten()
        columns = self.tokens[0][:, None]
        if self.vocabulary is not None:
            ids = self.vocabulary.expand(self.outputs.shape)[0]
            columns = (ids == columns).int().argmax(dim=-1, keepdim=True)
        return torch.softmax(self.logits[0], dim=-1).gather(1, columns).flatten()


def draw(probabilities: Tensor) -> Tensor:
    """One token [n] from each row of ``probabilities`` [n, V]; rows need not be normalised."""
    return torch.multinomial(probabilities, num_samples=1).squeeze(-1)


def chances(logits: Tensor, warp: Warp) -> Tensor:
    """q [n, V] to draw from: the softmax of what ``warp`` makes of spread logits [n, V].

    Where it leaves nothing (every id a head can propose is suppressed) or nothing finite, the row is drawn from as the
    drafter has it: any q is exact, as long as it is the one that was drawn from.
    """
    warped = warp(logits).float()
    usable = torch.isfinite(warped.amax(dim=-1, keepdim=True))
    return torch.softmax(torch.where(usable, warped, logits.float()), dim=-1)


def spread(logits: Tensor, vocabulary: Tensor | None, vocab_size: int) -> Tensor:
    """Logits [..., W] in their places among ``vocab_size`` ids: impossible (-inf) where a head has no column.

    >>> spread(torch.tensor([1.0, 2.0]), torch.tensor([3, 0]), 4).tolist()
    [2.0, -inf, -inf, 1.0]
    """
    if vocabulary is None:
        return logits
    places = vocabulary.expand(logits.shape)
    return logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf).scatter(-1, places, logits)


def scaled_logits(outputs: Tensor, multiplier: float, softcap: float | None) -> Tensor:
    """A head's output as float32 logits, as its authors define them: multiplier first, then the soft cap.

    >>> scaled_logits(torch.tensor([4.0]), 0.5, 2.0).mul(1000).round().tolist()
    [1523.0]
    """
    logits = outputs.float() * multiplier
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap
