"""What a selector is trained by: to choose the label among the candidates of its slot, after the token before it.

    loss = -log softmax over a slot's K candidates of  unary(c) + <A[p] * (W h), B[c]>  at the label

The candidates and their unary scores are taken as they are: that they are good is what the backbone's own loss is for.
A slot whose label is no candidate teaches a selector nothing and counts for nothing here.
Shapes: A blocks, J drafted slots, n slots with a label, R rows of the head, K candidates, D width, r rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_hf.drafter.heads.draft import scaled_logits
from dflash_hf.drafter.heads.selector import SelectorHead
from dflash_hf.target.logits import Scale
from dflash_hf.training.heads import HeadRows
from dflash_hf.training.losses import Objective, dpace_weights, exponential_weights
from dflash_hf.training.vocabulary import Tiles, tiles_for

__all__ = ["best_columns", "selector_loss"]


def selector_loss(
    selector: SelectorHead,
    hidden: Tensor,  # [A, J, D] of the drafted slots
    labels: Tensor,  # [A, J] token ids, NO_LABEL where there is nothing to predict
    before: Tensor,  # [A, J] the token before each label
    head: HeadRows,  # of the drafter, all of its columns
    objective: Objective,
    *,
    vocabulary: Tensor | None = None,  # [R] token of each column, for a reduced head
    scale: Scale = Scale(),  # noqa: B008 - frozen
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum of weighted losses [], and the sum of the weights [] of all slots with a label."""
    placed = head.place(labels)
    counts = placed >= 0
    kept = counts.flatten().nonzero().flatten()
    states = hidden.flatten(0, 1).index_select(0, kept)
    unary, columns = best_columns(states.detach(), head, selector.top_k, scale, tiles)
    candidates = columns if vocabulary is None else vocabulary[columns]
    reading = selector.predecessor_codebook(before.flatten()[kept]) * selector.hidden_projection(states)  # [n, r]
    scores = unary + (selector.successor_codebook(candidates) @ reading[..., None])[..., 0].float()
    chosen = columns == placed.flatten()[kept, None]  # [n, K], at most one
    there = chosen.any(dim=-1)
    of_label = torch.where(chosen, scores.log_softmax(dim=-1), 0.0).sum(dim=-1)
    if objective.weights == "dpace":
        sure = torch.where(there, of_label.detach().exp(), 0.0)
        probability = torch.zeros(counts.numel(), device=sure.device, dtype=sure.dtype).index_copy(0, kept, sure)
        weights = dpace_weights(probability.view_as(counts), counts, objective.alpha)
    else:
        weights = exponential_weights(labels.shape[1], objective.gamma).to(scores).expand(labels.shape)
    counted = weights.flatten().index_select(0, kept)
    return -(of_label * counted).sum(), counted.sum()


@torch.no_grad()
def best_columns(
    hidden: Tensor,  # [n, D]
    head: HeadRows,
    count: int,
    scale: Scale = Scale(),  # noqa: B008 - frozen
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """Float32 logits and column numbers [n, K] of the best ``count`` columns, a tile of rows at a time."""
    tiles = tiles or tiles_for(len(head.weight), hidden.device)
    step, most = max(1, tiles.rows * tiles.vocabulary // len(head.weight)), min(count, len(head.weight))
    values, columns = list[Tensor](), list[Tensor]()
    for part in hidden.split(step):  # at least one, also of no rows
        outputs = torch.nn.functional.linear(part.to(head.weight.dtype), head.weight, head.bias)
        best = outputs.topk(most, dim=-1)  # multiplier and soft cap keep the order
        values.append(best.values)
        columns.append(best.indices)
    return scaled_logits(torch.cat(values), scale.multiplier, scale.softcap), torch.cat(columns)
