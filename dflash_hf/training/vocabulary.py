"""What a loss asks of logits, without the logits: per-row numbers, and their gradients, tile by tile.

The logits [n, R] of all drafted slots would be the largest tensor of training by far. Here a tile of rows meets a
chunk of the vocabulary at a time (``training.tiles``). The head is frozen, so gradients go to the drafter's hidden
states alone and are made in the forward pass, while the tile is at hand: where one chunk holds the vocabulary nothing
is computed twice, and cross-entropy costs two matrix products.

    q = softmax(drafter's logits), p = softmax(target's logits), y the label's row
    ce = -log q_y      kl = sum p log(p / q)      overlap = sum min(p, q)      label_probability = q_y

Sums are float32 (float64 for float64 inputs); under autocast the matrix products are in its type.
Shapes: n rows, R head rows, D width, m teacher rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dflash_hf.target.logits import Scale
from dflash_hf.training.heads import HeadRows
from dflash_hf.training.tiles import DIFFERENTIABLE, NAMES, LogProbabilities, tile_statistics

__all__ = ["Statistics", "Teacher", "Tiles", "linear_statistics", "tiles_for"]

_CPU_ELEMENTS, _DEVICE_ELEMENTS = 2**23, 2**27  # logits in one tile
_FEWEST_ROWS = 64  # fewer make a matrix product slow: then the vocabulary is cut instead


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's own view of the same tokens. Several drafted slots may share a row."""

    states: Tensor  # [m, D], what the target's head reads
    rows: Tensor  # [n], the row of ``states`` that predicts each label
    scale: Scale = Scale()
    head: HeadRows | None = None  # rows of the same tokens in the target's head; None: the drafter's are the target's


@dataclass(frozen=True, slots=True)
class Tiles:
    """How many rows and how much of the vocabulary are at hand at once: memory is their product."""

    rows: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """Per row [n]; None where it was not asked for. The first three carry gradients to the hidden states."""

    ce: Tensor | None = None
    kl: Tensor | None = None
    overlap: Tensor | None = None
    label_probability: Tensor | None = None


def tiles_for(vocabulary: int, device: torch.device) -> Tiles:
    """Tiles of some 8 million logits on a CPU, of 128 million elsewhere: rows are cut first, which costs nothing."""
    elements = _CPU_ELEMENTS if device.type == "cpu" else _DEVICE_ELEMENTS
    chunk = max(1, min(vocabulary, elements // _FEWEST_ROWS))
    return Tiles(max(1, elements // chunk), chunk)


def linear_statistics(
    hidden: Tensor,  # [n, D] of the drafter, after its final norm
    head: HeadRows,
    labels: Tensor,  # [n] row numbers of the head, all valid
    *,
    wanted: Collection[str],
    scale: Scale = Scale(),  # noqa: B008 - frozen
    teacher: Teacher | None = None,
    tiles: Tiles | None = None,
) -> Statistics:
    """The statistics named in ``wanted`` of ``hidden`` through the head.

    Args:
        wanted: of "ce", "kl", "overlap", "label_probability".
        scale: what decoding does to the drafter's logits.
        teacher: needed for "kl" and "overlap".
        tiles: None takes :func:`tiles_for`.
    """
    assert set(wanted) <= set(NAMES), f"unknown statistics {set(wanted) - set(NAMES)}"
    assert teacher is not None or not {"kl", "overlap"} & set(wanted), "kl and overlap need a teacher"
    tiles = tiles or tiles_for(len(head.weight), hidden.device)
    job = _Job(head, labels, frozenset(wanted), scale, teacher, tiles, torch.is_grad_enabled() and hidden.requires_grad)
    names = [name for name in NAMES if name in wanted]
    return Statistics(**dict(zip(names, _LinearStatistics.apply(hidden, job), strict=True)))


@dataclass(frozen=True, slots=True)
class _Job:
    """Everything but the hidden states."""

    head: HeadRows
    labels: Tensor
    wanted: frozenset[str]
    scale: Scale
    teacher: Teacher | None
    tiles: Tiles
    with_gradients: bool


class _LinearStatistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, job: _Job) -> tuple[Tensor, ...]:
        kind = hidden.device.type
        product = torch.promote_types(hidden.dtype, job.head.weight.dtype)
        if torch.is_autocast_enabled(kind):
            product = torch.get_autocast_dtype(kind)
        sums = torch.float64 if product == torch.float64 else torch.float32
        sloped = [name for name in DIFFERENTIABLE if job.with_gradients and name in job.wanted]
        values = {name: hidden.new_empty(len(hidden), dtype=sums) for name in NAMES if name in job.wanted}
        slopes = {name: torch.empty_like(hidden, dtype=sums) for name in sloped}
        weight = job.head.weight.to(product)
        given = job.teacher.head if job.teacher is not None else None
        theirs = weight if given is None or given.weight is job.head.weight else given.weight.to(product)
        with torch.autocast(kind, enabled=False):
            for first in range(0, len(hidden), job.tiles.rows):
                part = slice(first, first + job.tiles.rows)
                found, gradients = _tile(hidden[part].to(product), weight, theirs, part, job, sums)
                for name in values:
                    values[name][part] = found[name]
                for name in sloped:
                    slopes[name][part] = gradients[name]
        ctx.names, ctx.dtype = list(values), hidden.dtype
        ctx.save_for_backward(*slopes.values())
        ctx.mark_non_differentiable(*(value for name, value in values.items() if name not in DIFFERENTIABLE))
        return tuple(values.values())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, None]:
        asked = [grad for name, grad in zip(ctx.names, given, strict=True) if name in DIFFERENTIABLE]
        total: Tensor | None = None
        for grad, slope in zip(asked, ctx.saved_tensors, strict=True):
            part = grad[:, None] * slope
            total = part if total is None else total.add_(part)
        return None if total is None else total.to(ctx.dtype), None


def _tile(
    hidden: Tensor, weight: Tensor, target_weight: Tensor, part: slice, job: _Job, sums: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Values and gradients of one tile of rows."""
    width, step = len(weight), job.tiles.vocabulary
    chunks = [slice(start, min(start + step, width)) for start in range(0, width, step)]
    labels = job.labels[part]
    mine = LogProbabilities(hidden, weight, job.head, job.scale, chunks, sums, labels)
    theirs = shared = None
    if job.teacher is not None and job.wanted & {"kl", "overlap"}:
        rows, shared = torch.unique(job.teacher.rows[part], return_inverse=True)
        states = job.teacher.states.index_select(0, rows).to(weight.dtype)
        head = job.teacher.head or job.head
        theirs = LogProbabilities(states, target_weight, head, job.teacher.scale, chunks, sums)
    return tile_statistics(mine, theirs, shared, labels, job.wanted, job.with_gradients)
