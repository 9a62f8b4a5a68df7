"""How fast to learn at which step: linear warm-up, then a cosine down to nothing."""

from __future__ import annotations

import math

__all__ = ["rate_factor", "total_steps"]


def rate_factor(step: int, steps: int, warmup: float) -> float:
    """What the recipe's learning rates are multiplied by at ``step`` (0-based) of ``steps``.

    >>> [round(rate_factor(step, 8, 0.25), 2) for step in range(8)]
    [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
    """
    warm = round(steps * warmup)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * min((step - warm) / max(1, steps - warm), 1.0)))


def total_steps(documents: int, per_step: int, *, steps: int | None, epochs: float | None) -> int:
    """Steps of the whole run: as the recipe says, or as many as its epochs take."""
    return steps if steps is not None else max(1, math.ceil((epochs or 0) * documents / per_step))
