"""One tile of ``training.vocabulary``: some rows against the whole vocabulary, a chunk of it at a time.

Two passes: the first finds each row's normaliser online, the second makes probabilities, sums and gradients. Where one
chunk holds the vocabulary, its logits are kept between the two. Nothing here is differentiated: gradients are formulas.
Shapes: r rows, u teacher rows that they share, c head rows of a chunk, D width.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from dflash_hf.target.logits import Scale
from dflash_hf.training.heads import HeadRows

__all__ = ["DIFFERENTIABLE", "NAMES", "LogProbabilities", "tile_statistics"]

DIFFERENTIABLE = ("ce", "kl", "overlap")
NAMES = (*DIFFERENTIABLE, "label_probability")


class LogProbabilities:
    """Log-softmax of some states through the head. Making it is the first pass."""

    def __init__(
        self,
        states: Tensor,  # [r, D], in the type of the matrix products
        weight: Tensor,  # [R, D], likewise
        head: HeadRows,
        scale: Scale,
        chunks: list[slice],
        sums: torch.dtype,
        labels: Tensor | None = None,  # [r]
    ) -> None:
        self.chunks, self.multiplier = chunks, scale.multiplier
        self._states, self._weight, self._head, self._scale, self._sums = states, weight, head, scale, sums
        self._kept: tuple[Tensor, Tensor | None] | None = None
        self.normaliser = states.new_full((len(states),), -torch.inf, dtype=sums)
        self.of_label = torch.zeros_like(self.normaliser)  # the label's logit
        for part in chunks:
            logits, bend = self._logits(part)
            if head.raised is not None:
                logits += head.raised[part]
            if labels is not None:
                inside, at = _inside(labels, part)
                self.of_label += torch.where(inside, logits.gather(1, at[:, None])[:, 0], 0.0)
            self.normaliser = torch.logaddexp(self.normaliser, logits.logsumexp(dim=-1))
            if len(chunks) == 1:
                self._kept = logits, bend

    def chunk(self, part: slice) -> tuple[Tensor, Tensor | None]:
        """The second pass: log-probabilities [r, c], and a soft cap's slope [r, c] or None. Once for each chunk."""
        if self._kept is not None:
            (logits, bend), self._kept = self._kept, None
        else:
            logits, bend = self._logits(part)
            if self._head.raised is not None:
                logits += self._head.raised[part]
        return logits.sub_(self.normaliser[:, None]), bend

    def times_weight(self, coefficients: Tensor, part: slice) -> Tensor:
        """What coefficients [r, c] on the logits of a chunk mean for the states: [r, D], but for the multiplier."""
        return (coefficients.to(self._weight.dtype) @ self._weight[part]).to(self._sums)

    def _logits(self, part: slice) -> tuple[Tensor, Tensor | None]:
        logits = (self._states @ self._weight[part].T).to(self._sums)
        if self._head.bias is not None:
            logits += self._head.bias[part]
        if self.multiplier != 1.0:
            logits *= self.multiplier
        if self._scale.softcap is None:
            return logits, None
        bent = logits.div_(self._scale.softcap).tanh_()
        return bent * self._scale.softcap, bent.square_().neg_().add_(1)


def tile_statistics(
    mine: LogProbabilities,  # the drafter's, of r rows
    theirs: LogProbabilities | None,  # the target's, of u rows
    shared: Tensor | None,  # [r], which of the u rows is a row's teacher
    labels: Tensor,  # [r]
    wanted: Collection[str],
    with_gradients: bool,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The numbers [r] named in ``wanted``, and gradients [r, D] of the differentiable ones."""
    log_label = mine.of_label - mine.normaliser
    values = {"ce": -log_label, "label_probability": log_label.exp()}
    sums = _Sums(mine, labels, [name for name in DIFFERENTIABLE if name in wanted] if with_gradients else [])
    if theirs is None and not sums.names:
        return values, {}
    values["kl"], values["overlap"] = torch.zeros_like(log_label), torch.zeros_like(log_label)
    for part in mine.chunks:
        log_q, bend = mine.chunk(part)
        q, p = log_q.exp(), None
        if theirs is not None and shared is not None:
            log_p, _ = theirs.chunk(part)
            few = log_p.exp()
            p = few.index_select(0, shared)
            if "kl" in wanted:
                values["kl"] += (few * log_p).sum(dim=-1).index_select(0, shared) - log_q.mul_(p).sum(dim=-1)
            if "overlap" in wanted:
                values["overlap"] += torch.minimum(p, q).sum(dim=-1)
        sums.add(part, q, p, bend)
    return values, sums.gradients()


class _Sums:
    """Gradients of ``names``, summed over the chunks.

    By the drafter's logits: ``ce`` has q - 1[label], ``kl`` has q - p, and ``overlap`` has q (1[q < p] - M), where M is
    all the q that lies below p. M is known after the last chunk only, so with several its part is kept apart.
    """

    def __init__(self, mine: LogProbabilities, labels: Tensor, names: list[str]) -> None:
        self.names, self._mine, self._labels = names, mine, labels
        self._whole = len(mine.chunks) == 1
        self._sums: dict[str, Tensor] = {}
        self._below: Tensor | None = None  # M [r]

    def add(self, part: slice, q: Tensor, p: Tensor | None, bend: Tensor | None) -> None:
        """Take one chunk in; ``q`` is used up."""
        if "overlap" in self.names and p is not None:
            below = torch.where(q < p, q, 0.0)
            mass = below.sum(dim=-1)
            self._below = mass if self._below is None else self._below + mass
            if self._whole:
                below.addcmul_(q, mass[:, None], value=-1)
            else:
                self._add("q", q.clone(), part, bend)
            self._add("overlap", below, part, bend)
        if "kl" in self.names and p is not None:
            self._add("kl", q - p, part, bend)
        if "ce" in self.names:
            inside, at = _inside(self._labels, part)
            q.scatter_add_(1, at[:, None], -inside[:, None].to(q.dtype))
            self._add("ce", q, part, bend)

    def gradients(self) -> dict[str, Tensor]:
        if self._below is not None and not self._whole:
            self._sums["overlap"].addcmul_(self._sums.pop("q"), self._below[:, None], value=-1)
        if self._mine.multiplier != 1.0:
            for gradient in self._sums.values():
                gradient *= self._mine.multiplier
        return self._sums

    def _add(self, name: str, coefficients: Tensor, part: slice, bend: Tensor | None) -> None:
        """``coefficients`` are used up."""
        if bend is not None:
            coefficients *= bend
        product = self._mine.times_weight(coefficients, part)
        self._sums[name] = self._sums[name].add_(product) if name in self._sums else product


def _inside(labels: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Which labels [r] lie in a chunk, and their places in it; those outside stand at some place inside."""
    inside = (labels >= part.start) & (labels < part.stop)
    return inside, (labels - part.start).clamp(0, part.stop - part.start - 1)
