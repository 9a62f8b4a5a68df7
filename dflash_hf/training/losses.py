"""Losses of drafted slots and how much each slot counts: any loss goes with any weights.

Losses, of a slot with the drafter's q and the target's p:
    ce      -log q(label), the token the target wrote (arXiv 2602.06036)
    kl      KL(p || q)
    hybrid  l KL(p || q) + (1 - l) (1 - overlap), l = exp(-eta overlap) held fixed: KL where the two are far apart, what
            acceptance counts where they are close (LK losses, arXiv 2602.23881; eta 3)
Weights, of slots k = 1..J after the anchor, as a block is used up to its first mistake:
    exponential  exp(-(k - 1) / gamma) (arXiv 2602.06036, appendix A.1: gamma 7, 5, 4 for blocks of 16, 10, 8)
    dpace        sum over m >= k of the products over i <= m of (1 - alpha) q_i(label) + alpha, held fixed: what slot k
                 adds to the expected accepted length (D-PACE, arXiv 2605.18810; alpha 0.5)
Shapes: A blocks, J drafted slots, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dflash_hf.errors import TrainingError
from dflash_hf.target.logits import Scale
from dflash_hf.training.corrected import corrected_statistics
from dflash_hf.training.drafter_head import Correction
from dflash_hf.training.heads import HeadRows
from dflash_hf.training.vocabulary import Statistics, Teacher, Tiles, linear_statistics

__all__ = ["LOSSES", "WEIGHTS", "Objective", "dpace_weights", "exponential_weights", "weighted_loss"]

LOSSES = {"ce": frozenset({"ce"}), "kl": frozenset({"kl"}), "hybrid": frozenset({"kl", "overlap"})}
WEIGHTS = ("exponential", "dpace")


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss and its weights."""

    loss: str = "ce"
    weights: str = "exponential"
    gamma: float = 4.0
    alpha: float = 0.5
    eta: float = 3.0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise TrainingError(f"loss {self.loss!r} is not known; known: {', '.join(LOSSES)}")
        if self.weights not in WEIGHTS:
            raise TrainingError(f"position weights {self.weights!r} are not known; known: {', '.join(WEIGHTS)}")
        if self.gamma <= 0 or not 0 <= self.alpha <= 1 or self.eta < 0:
            raise TrainingError(
                f"gamma is above 0, alpha between 0 and 1, eta not below 0; "
                f"got gamma {self.gamma}, alpha {self.alpha}, eta {self.eta}"
            )

    @property
    def needs_teacher(self) -> bool:
        """Whether it reads the target's distribution, not its tokens alone."""
        return self.loss != "ce"


def exponential_weights(drafted: int, gamma: float) -> Tensor:
    """Weights [J], the first being 1.

    >>> exponential_weights(3, gamma=2.0).mul(100).round().tolist()
    [100.0, 61.0, 37.0]
    """
    return torch.exp(-torch.arange(drafted) / gamma)


def dpace_weights(label_probability: Tensor, counts: Tensor, alpha: float) -> Tensor:
    """Weights [A, J] from the drafter's probability of each label [A, J]; a slot without a label ends its block.

    Args:
        label_probability: whatever where ``counts`` is False.
        counts: bool [A, J], where there is a label.
        alpha: how sure the drafter is at least taken to be.

    >>> dpace_weights(torch.tensor([[1.0, 0.5, 0.9]]), torch.tensor([[True, True, False]]), alpha=0.5).tolist()
    [[1.75, 0.75, 0.0]]
    """
    kept = torch.where(counts, (1 - alpha) * label_probability.detach() + alpha, 0.0)
    reached = kept.cumprod(dim=-1)
    return reached.flip(-1).cumsum(dim=-1).flip(-1)


def weighted_loss(
    hidden: Tensor,  # [A, J, D] of the drafted slots
    labels: Tensor,  # [A, J] token ids, NO_LABEL where there is nothing to predict
    head: HeadRows,
    objective: Objective,
    *,
    scale: Scale = Scale(),  # noqa: B008 - frozen
    teacher: Teacher | None = None,  # its rows are [A, J]
    correction: Correction | None = None,  # its code is [A, J, r]
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum of weighted losses [], and the sum of weights [] to divide by once all sums are added up.

    A slot whose label has no row in ``head`` counts as one without a label. Where no slot counts, both are 0.
    """
    placed = head.place(labels)
    counts = placed >= 0
    kept = counts.flatten().nonzero().flatten()
    if teacher is not None:
        teacher = replace(teacher, rows=teacher.rows.flatten().index_select(0, kept))
    more = {"label_probability"} if objective.weights == "dpace" else set()
    states, columns = hidden.flatten(0, 1).index_select(0, kept), placed.flatten().index_select(0, kept)
    wanted = LOSSES[objective.loss] | more
    if correction is None:
        found = linear_statistics(states, head, columns, wanted=wanted, scale=scale, teacher=teacher, tiles=tiles)
    else:
        found = corrected_statistics(
            states, correction.at(kept), head, columns, wanted=wanted, scale=scale, teacher=teacher, tiles=tiles
        )
    losses = _losses(found, objective)
    if found.label_probability is not None:
        probability = torch.zeros(counts.numel(), device=losses.device, dtype=losses.dtype)
        probability = probability.index_copy(0, kept, found.label_probability).view_as(counts)
        weights = dpace_weights(probability, counts, objective.alpha)
    else:
        weights = exponential_weights(labels.shape[1], objective.gamma).to(losses).expand(labels.shape)
    counted = weights.flatten().index_select(0, kept)
    return (losses * counted).sum(), counted.sum()


def _losses(found: Statistics, objective: Objective) -> Tensor:  # [n]
    if objective.loss == "ce":
        assert found.ce is not None
        return found.ce
    assert found.kl is not None
    if objective.loss == "kl":
        return found.kl
    assert found.overlap is not None
    share = torch.exp(-objective.eta * found.overlap.detach())
    return share * found.kl + (1 - share) * (1 - found.overlap)
