"""The numbers of ``training.vocabulary`` where a Markov head corrects the logits, and learns.

    logits = scale(hidden @ W.T) + code @ B.T        W frozen [R, D], B the head's own [R, r]

B needs a gradient, which is a sum over all rows and depends on what each row's loss counts for: known only when the
backward pass comes. So a tile of rows is computed, forgotten, and computed again there: what is held is one tile's
logits and a few tensors of their size, never rows x vocabulary.
Shapes: n rows, R head rows, D width, r rank.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dflash_hf.target.logits import Scale
from dflash_hf.training.drafter_head import Correction
from dflash_hf.training.heads import HeadRows
from dflash_hf.training.tiles import NAMES, LogProbabilities
from dflash_hf.training.vocabulary import Statistics, Teacher, Tiles, tiles_for

__all__ = ["corrected_statistics"]

_COPIES = 4  # tensors of a tile's size that autograd holds at a time


def corrected_statistics(
    hidden: Tensor,  # [n, D] of the drafter, after its final norm
    correction: Correction,  # its code is [n, r]
    head: HeadRows,
    labels: Tensor,  # [n] row numbers of the head, all valid
    *,
    wanted: Collection[str],
    scale: Scale = Scale(),  # noqa: B008 - frozen
    teacher: Teacher | None = None,
    tiles: Tiles | None = None,
) -> Statistics:
    """As :func:`~dflash_hf.training.vocabulary.linear_statistics`; gradients go to hidden, code and B.

    Args:
        tiles: their product is how many logits are at hand; the vocabulary is never cut.
    """
    tiles = tiles or tiles_for(len(head.weight), hidden.device)
    step = max(1, tiles.rows * tiles.vocabulary // (_COPIES * len(head.weight)))
    kind = hidden.device.type
    product = torch.promote_types(hidden.dtype, head.weight.dtype)
    if torch.is_autocast_enabled(kind):
        product = torch.get_autocast_dtype(kind)
    tile = _Tile(head, correction.weight.to(product), labels, frozenset(wanted), scale, teacher, product)
    with torch.autocast(kind, enabled=False):
        parts = [
            checkpoint(
                tile, hidden[first : first + step], correction.code[first : first + step], first, use_reentrant=False
            )
            for first in range(0, len(hidden), step)
        ] or [tile(hidden, correction.code, 0)]
    values = [torch.cat(each) for each in zip(*parts, strict=True)]
    return Statistics(**dict(zip([name for name in NAMES if name in wanted], values, strict=True)))


class _Tile:
    """Some rows against the whole vocabulary, in plain tensor operations."""

    def __init__(
        self,
        head: HeadRows,
        correction: Tensor,
        labels: Tensor,
        wanted: frozenset[str],
        scale: Scale,
        teacher: Teacher | None,
        product: torch.dtype,
    ) -> None:
        self.head, self.correction, self.labels, self.wanted = head, correction, labels, wanted
        self.scale, self.teacher, self.product = scale, teacher, product
        self.weight = head.weight.detach().to(product)
        theirs = None if teacher is None else teacher.head
        self.target_weight = self.weight if theirs is None else theirs.weight.to(product)
        self.sums = torch.float64 if product == torch.float64 else torch.float32

    def __call__(self, hidden: Tensor, code: Tensor, first: int) -> tuple[Tensor, ...]:
        labels = self.labels[first : first + len(hidden), None]
        log_q = self._logits(hidden, code).log_softmax(dim=-1)
        of_label = log_q.gather(1, labels)[:, 0]
        found = {"ce": -of_label, "label_probability": of_label.detach().exp()}
        if self.wanted & {"kl", "overlap"}:
            log_p = self._log_p(slice(first, first + len(hidden)))
            p = log_p.exp()
            found["kl"] = (p * (log_p - log_q)).sum(dim=-1)
            if "overlap" in self.wanted:
                found["overlap"] = torch.minimum(p, log_q.exp()).sum(dim=-1)
        return tuple(found[name] for name in NAMES if name in self.wanted)

    def _logits(self, hidden: Tensor, code: Tensor) -> Tensor:
        outputs = (hidden.to(self.product) @ self.weight.T).to(self.sums)
        if self.head.bias is not None:
            outputs = outputs + self.head.bias
        logits = outputs * self.scale.multiplier
        if self.scale.softcap is not None:
            logits = torch.tanh(logits / self.scale.softcap) * self.scale.softcap
        logits = logits + (code.to(self.product) @ self.correction.T).to(self.sums)
        return logits if self.head.raised is None else logits + self.head.raised

    @torch.no_grad()
    def _log_p(self, part: slice) -> Tensor:
        assert self.teacher is not None, "kl and overlap need a teacher"
        rows, shared = torch.unique(self.teacher.rows[part], return_inverse=True)
        states = self.teacher.states.index_select(0, rows).to(self.product)
        head, whole = self.teacher.head or self.head, [slice(0, len(self.target_weight))]
        made = LogProbabilities(states, self.target_weight, head, self.teacher.scale, whole, self.sums)
        return made.chunk(whole[0])[0].index_select(0, shared)
