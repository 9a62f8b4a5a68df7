"""Exact distributions without sampling: a function is replayed for every outcome of the draws inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


class Branches:
    """A tree of decisions, walked depth first; every leaf is one run of the function, with its probability."""

    def __init__(self) -> None:
        self.path: list[list[tuple[Any, float]]] = []  # per decision of the run: the outcome taken, then those to come

    def choose(self, outcomes: list[tuple[Any, float]]) -> Any:
        """One of ``outcomes``, (value, probability) each; impossible ones are left out."""
        if self.at == len(self.path):
            self.path.append([outcome for outcome in outcomes if outcome[1] > 0])
        value, chance = self.path[self.at][0]
        self.at += 1
        self.weight *= chance
        return value

    def draw(self, probabilities: Tensor) -> Tensor:
        rows = (probabilities.double() / probabilities.double().sum(-1, keepdim=True)).tolist()
        return torch.tensor([self.choose(list(enumerate(row))) for row in rows])

    def happens(self, chances: Tensor) -> Tensor:
        sure = [min(chance, 1.0) for chance in chances.double().tolist()]
        return torch.tensor([self.choose([(True, chance), (False, 1.0 - chance)]) for chance in sure])

    def every(self, function: Callable[[], Any]) -> Iterator[tuple[Any, float]]:
        """What ``function`` gives, and how likely that is, for every combination of outcomes."""
        while True:
            self.at, self.weight = 0, 1.0
            result = function()
            yield result, self.weight
            while self.path and len(self.path[-1]) == 1:
                self.path.pop()
            if not self.path:
                return
            self.path[-1].pop(0)

    def distribution(self, function: Callable[[], Any]) -> dict[Any, float]:
        """Probability of each value ``function`` can give."""
        found: dict[Any, float] = {}
        for value, weight in self.every(function):
            found[value] = found.get(value, 0.0) + weight
        return found
