"""Which rows of a prefill are real tokens, and where they stand: padding is not shown to the drafter."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["RealRows"]

_TEXT_AND_THREE = 4  # axes of positions: of the text, then in time, height and width


class RealRows:
    """Follows a prefill, chunk by chunk.

    Args:
        start: tokens the cache held before.
        mask: [1, T] attention mask of the whole sequence, or None where nothing is padding.
    """

    def __init__(self, start: int, mask: Tensor | None) -> None:
        self._next, self._mask = start, mask

    @property
    def seen(self) -> int:
        """Tokens read so far, those that the cache held before and padding included."""
        return self._next

    def select(self, taps: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Taps [1, C, ...] and the positions the target got, to taps and positions [1, c] of real tokens.

        Drafters are trained on one token after another. So a target's positions on several axes (M-RoPE, where a
        picture's tokens share places) count only if it brings the text's own as the first of four; else, and where it
        takes none, its real tokens are counted.
        """
        first, count = self._next, taps.shape[1]
        self._next += count
        if self._mask is not None:
            first = min(first, self._mask.shape[1] - count)  # a target that starts its cache anew reads all again
        if positions is not None and positions.dim() > 2:
            positions = positions[0] if len(positions) == _TEXT_AND_THREE else None
        if positions is None:
            positions = self._count(first, count).to(taps.device)
        positions = positions.reshape(1, -1).expand(1, count)
        if self._mask is None:
            return taps, positions
        real = self._mask[0, first : first + count].bool()
        return taps[:, real.to(taps.device)], positions[:, real.to(positions.device)]

    def _count(self, first: int, count: int) -> Tensor:
        """Positions [1, C] by counting; padding has none, so what is said of it does not matter."""
        if self._mask is None:
            return torch.arange(first, first + count)[None]
        return (self._mask.long().cumsum(dim=-1) - 1)[:1, first : first + count]
