"""Summaries of a list of ratios: a median, and how far it can be trusted."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median

__all__ = ["Spread", "spread"]

_ENOUGH = 8  # below this many values a bootstrap interval says more than it knows; min and max are given instead


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with an interval. ``kind`` says which: ``"bootstrap 95 %"`` of the median, or ``"min-max"``."""

    median: float
    low: float
    high: float
    kind: str
    count: int


def spread(values: list[float], *, seed: int = 0, draws: int = 2000) -> Spread | None:
    """Median of ``values`` with a seeded percentile-bootstrap interval, or min and max where values are few.

    >>> spread([2.0, 1.0, 4.0])
    Spread(median=2.0, low=1.0, high=4.0, kind='min-max', count=3)
    """
    if not values:
        return None
    middle, count = median(values), len(values)
    if count < _ENOUGH:
        return Spread(middle, min(values), max(values), "min-max", count)
    chance = random.Random(seed)
    medians = sorted(median(chance.choices(values, k=count)) for _ in range(draws))
    low, high = medians[int(0.025 * draws)], medians[int(0.975 * draws)]
    return Spread(middle, low, high, "bootstrap 95 %", count)
