"""The target's frozen head for training: all of its rows, or the ones that matter and a sample of the others.

In: a target or head rows. Out: :class:`HeadRows`, what ``training.vocabulary`` multiplies hidden states with, and the
places of labels among those rows. Shapes: V vocabulary, R rows in use, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dflash_hf.errors import TrainingError
from dflash_hf.target.plain_weights import unreadable
from dflash_hf.target.view import TargetView
from dflash_hf.training.documents import Document
from dflash_hf.training.packs import NO_LABEL
from dflash_hf.training.seeds import generator_for

__all__ = ["FullHead", "Head", "HeadRows", "ReducedHead", "SampledHead", "answer_tokens", "head_for", "head_parameters"]


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows of a head in use at one step: logits are ``scale(hidden @ weight.T + bias) + raised``."""

    weight: Tensor  # [R, D]
    bias: Tensor | None = None  # [R], the head's own
    raised: Tensor | None = None  # [R], for rows that stand for several
    places: Tensor | None = None  # [V], the row of a token, NO_LABEL where it has none; None: tokens are rows
    columns: Tensor | None = None  # [R], the columns of the drafter's logits that they are; None: all, in order

    def place(self, labels: Tensor) -> Tensor:
        """Token ids [...] as row numbers; NO_LABEL stays, and is what a token without a row gets."""
        if self.places is None:
            return labels
        return torch.where(labels >= 0, self.places[labels.clamp(min=0)], NO_LABEL)


class Head(Protocol):
    """Where the rows of a step come from."""

    def rows(self, seed: int | str, tokens: Tensor) -> HeadRows:
        """The rows of the step that ``seed`` names, those of ``tokens`` [n] among them; a function of the two."""


def head_parameters(view: TargetView) -> tuple[Tensor, Tensor | None]:
    """Weight [V, D] and bias [V] or None of the target's head, not copied.

    Raises:
        TrainingError: the head is no plain linear layer in memory: quantised, wrapped or offloaded.
    """
    head = view.head
    reasons = [why for part in head.parameters() if (why := unreadable(part)) is not None]
    if type(head) is not nn.Linear or reasons:
        why = reasons[0] if type(head) is nn.Linear else f"a {type(head).__name__}"
        raise TrainingError(
            f"training reads the rows of the target's head, but that of {view.name} is {why}; load the target "
            "unquantised, not offloaded, and with its adapters merged"
        )
    return head.weight.detach(), None if head.bias is None else head.bias.detach()


class FullHead:
    """All rows, at every step: what the drafter meets at run time."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._rows = HeadRows(weight, bias)

    def rows(self, seed: int | str, tokens: Tensor) -> HeadRows:
        return self._rows


class SampledHead:
    """The rows of a step's own tokens and of the common ones, and a fresh sample of all others.

    The sampled rows stand for all others: their logits are raised by ``log(others / sample)``, which keeps the
    expected partition function that of the full head.

    Args:
        weight: the head's rows [V, D].
        bias: the head's bias [V], or None.
        common: ids [n] that every step takes, such as the corpus' most frequent.
        sample: how many of the other ids join each step; as many as there are makes it the full head.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, common: Tensor, sample: int) -> None:
        self._weight, self._bias, self._sample = weight, bias, sample
        self._common = torch.zeros(len(weight), dtype=torch.bool)
        self._common[common] = True

    def rows(self, seed: int | str, tokens: Tensor) -> HeadRows:
        device, taken = self._weight.device, self._common.clone()
        taken[tokens] = True
        sure, others = taken.nonzero().flatten(), (~taken).nonzero().flatten()
        drawn = others[torch.randperm(len(others), generator=generator_for("head", seed))[: self._sample]]
        ids = torch.cat([sure, drawn])
        places = torch.full((len(self._weight),), NO_LABEL)
        places[ids] = torch.arange(len(ids))
        raised = torch.zeros(len(ids))
        if len(drawn):
            raised[len(sure) :] = math.log(len(others) / len(drawn))
        ids = ids.to(device)
        return HeadRows(
            weight=self._weight[ids],
            bias=None if self._bias is None else self._bias[ids],
            raised=raised.to(device),
            places=places.to(device),
            columns=ids,
        )


class ReducedHead:
    """The target's rows of the tokens that a drafter with a reduced head can say.

    Args:
        weight: the head's rows [V, D].
        bias: the head's bias [V], or None.
        vocabulary: the token [W] of each of the drafter's columns.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, vocabulary: Tensor) -> None:
        places = torch.full((len(weight),), NO_LABEL, device=weight.device)
        places[vocabulary] = torch.arange(len(vocabulary), device=weight.device)
        own_bias = None if bias is None else bias[vocabulary]
        self._rows = HeadRows(weight[vocabulary], own_bias, places=places)

    def rows(self, seed: int | str, tokens: Tensor) -> HeadRows:
        return self._rows


def head_for(
    view: TargetView,
    documents: Sequence[Document],
    sample: int | None,
    device: torch.device,
    vocabulary: Tensor | None = None,
) -> Head:
    """The head of a run: full, or with the ``sample`` most frequent tokens of the answers as the common ones.

    With ``vocabulary``, the tokens [W] of a reduced head, it is those.

    Raises:
        TrainingError: see :func:`head_parameters`.
    """
    weight, bias = (None if part is None else part.to(device) for part in head_parameters(view))
    assert weight is not None
    if vocabulary is not None:
        return ReducedHead(weight, bias, vocabulary.to(device))
    if sample is None:
        return FullHead(weight, bias)
    counts = torch.bincount(answer_tokens(documents), minlength=len(weight))
    common = counts.argsort(descending=True, stable=True)[:sample]
    return SampledHead(weight, bias, common[counts[common] > 0], sample)


def answer_tokens(documents: Sequence[Document]) -> Tensor:
    """Ids [n] of all answers, one after another."""
    return torch.cat([document.ids[document.prompt_length :] for document in documents])
