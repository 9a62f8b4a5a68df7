"""DFlash 2's dynamic grouped convolution around a sublayer: a short memory along the block.

    before:  y_t = sum_j (base_0[j] + delta_0[t, j, group]) x_{t - j}        x: the sublayer's normed input
    after:   z_t = sum_j (base_1[j] + delta_1[t, j, group]) y'_{t - j}       y': the sublayer's output

Both deltas come from x. Nothing stands before slot 0, and context features are not convolved.
Shapes: B rows, K slots, D width, P taps of the kernel, N groups.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["BlockConvolution"]


class BlockConvolution(nn.Module):
    """Args:
    width: D, a multiple of ``group_size``.
    kernel_size: P, the slot itself included.
    group_size: channels that share a delta.
    """

    def __init__(self, width: int, kernel_size: int, group_size: int) -> None:
        super().__init__()
        self.base_kernel = nn.Parameter(torch.zeros(2, kernel_size, width))
        self.kernel_projection = nn.Linear(width, 2 * kernel_size * (width // group_size), bias=False)

    def kernels(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """The kernels before and after the sublayer, each [B, K, P, D], from its normed input [B, K, D]."""
        sides, taps, width = self.base_kernel.shape
        delta = self.kernel_projection(hidden_states).unflatten(-1, (sides, taps, -1))  # [B, K, 2, P, N]
        kernels = self.base_kernel + delta.repeat_interleave(width // delta.shape[-1], dim=-1)
        return kernels[..., 0, :, :], kernels[..., 1, :, :]

    @staticmethod
    def along(states: Tensor, kernel: Tensor) -> Tensor:
        """``states`` [B, K, D] with ``kernel`` [B, K, P, D]."""
        padded = nn.functional.pad(states, (0, 0, kernel.shape[2] - 1, 0))
        windows = padded.unfold(1, kernel.shape[2], 1).flip(-1).transpose(-1, -2)  # [B, K, P, D], newest first
        return (kernel * windows).sum(dim=2)
