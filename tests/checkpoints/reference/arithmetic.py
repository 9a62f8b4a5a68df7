"""The operations of a drafter, each on one vector of float64, written out. Nothing of torch, nothing of the package."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Rope:
    """Half-split rotary positions of a whole head."""

    theta: float
    yarn: tuple[float, int] | None = None  # factor, original length


def norm(row: Vector, scale: Vector, eps: float) -> Vector:
    """Root mean square norm."""
    return row / math.sqrt(float((row * row).sum()) / len(row) + eps) * scale


def sigmoid(row: Vector) -> Vector:
    return 1 / (1 + np.exp(-row))


def silu(row: Vector) -> Vector:
    return row * sigmoid(row)


def softmax(scores: Vector) -> Vector:
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def attend(query: Vector, keys: list[Vector], values: list[Vector]) -> Vector:
    """One head's mix of the values it sees."""
    shares = softmax(np.array([query @ key / math.sqrt(len(query)) for key in keys]))
    return sum((share * value for share, value in zip(shares, values, strict=True)), np.zeros(len(values[0])))


def rotate(head: Vector, position: int, rope: Rope) -> Vector:
    """Dimension i turns with dimension i + half."""
    half, out = len(head) // 2, head.copy()
    for index in range(half):
        frequency, amplitude = rope.theta ** (-2 * index / len(head)), 1.0
        if rope.yarn is not None:
            frequency = _yarn(frequency, index, half, rope.theta, *rope.yarn)
            amplitude = 0.1 * math.log(rope.yarn[0]) + 1
        cos, sin = (amplitude * turn(position * frequency) for turn in (math.cos, math.sin))
        out[index] = head[index] * cos - head[index + half] * sin
        out[index + half] = head[index + half] * cos + head[index] * sin
    return out


def _yarn(frequency: float, index: int, half: int, theta: float, factor: float, original: int) -> float:
    """YaRN (arXiv 2309.00071): fast dimensions keep their frequency, slow ones are divided, with a ramp between."""

    def dimension(turns: float) -> float:
        return 2 * half * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), 2 * half - 1)
    slow = min(max((index - low) / max(high - low, 0.001), 0.0), 1.0)
    return frequency * (1 - slow) + frequency / factor * slow
