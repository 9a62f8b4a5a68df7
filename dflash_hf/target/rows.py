"""Which rows of a prefill are real tokens, and where they stand: padding is not shown to the drafter."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["RealRows"]


class RealRows:
    """Follows a prefill, chunk by chunk.

    Args:
        start: tokens the cache held before.
        mask: [1, T] attention mask of the whole sequence, or None where nothing is padding.
    """

    def __init__(self, start: int, mask: Tensor | None) -> None:
        self._next, self._mask = start, mask

    def select(self, taps: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Taps [1, C, ...] and the positions the target got, to taps and positions [1, c] of real tokens.

        A target that takes no positions counts from the cache's length; one with several axes (M-RoPE) has the text's
        first.
        """
        first, count = self._next, taps.shape[1]
        self._next += count
        if positions is None:
            positions = torch.arange(first, first + count, device=taps.device)[None]
        while positions.dim() > 2:
            positions = positions[0]
        positions = positions.reshape(1, -1).expand(1, count)
        if self._mask is None:
            return taps, positions
        real = self._mask[0, first : first + count].bool()
        return taps[:, real.to(taps.device)], positions[:, real.to(positions.device)]
