"""The arithmetic of quantised weights: scales spread over a matrix, and small integers out of 32-bit words.

    w = (q - zero point) * scale            scale and zero point by tensor, row, group of columns, or block

Everything is computed in float32. Shapes: O rows (outputs), I columns (inputs).
Source: vllm-project/compressed-tensors 0.20 (``compressors/pack_quantized``), and transformers 5.24
(``integrations/finegrained_fp8.py``).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["dequantised", "spread_scale", "unpacked"]


def spread_scale(scale: Tensor, shape: tuple[int, int], block: tuple[int, int]) -> Tensor:
    """``scale`` as wide as a matrix of ``shape`` [O, I], whose blocks of ``block`` share one; the last may be cut.

    >>> spread_scale(torch.tensor([[1.0, 2.0]]), (1, 3), (1, 2)).tolist()
    [[1.0, 1.0, 2.0]]
    """
    rows, columns = scale.shape
    wide = scale.float()[:, None, :, None].expand(rows, block[0], columns, block[1])
    return wide.reshape(rows * block[0], columns * block[1])[: shape[0], : shape[1]]


def unpacked(words: Tensor, bits: int, columns: int) -> Tensor:
    """Signed integers [O, ``columns``] out of int32 ``words`` [O, n]; the first lies in the lowest bits.

    They are stored with ``2 ** (bits - 1)`` added, 32 / ``bits`` of them to a word.

    >>> unpacked(torch.tensor([[0x9A8]], dtype=torch.int32), 4, 3).tolist()
    [[0, 2, 1]]
    """
    shifts = torch.arange(0, 32, bits)
    held = (words.to(torch.int64)[..., None] >> shifts) & (2**bits - 1)
    return held.flatten(1)[:, :columns] - 2 ** (bits - 1)


def dequantised(
    held: Tensor,  # [O, I] integers or small floats
    scale: Tensor,  # [rows, columns] of it, a scale for each block
    block: tuple[int, int],
    zero_point: Tensor | None = None,  # as scale
    columns: Tensor | None = None,  # [I]: which column of the scale each column of the matrix has, where not in order
) -> Tensor:  # [O, I] float32
    """The weight."""
    shape = (held.shape[0], held.shape[1])
    if columns is not None:
        scale, block = scale[:, columns.long()], (block[0], 1)
        zero_point = None if zero_point is None else zero_point[:, columns.long()]
    values = held.float()
    if zero_point is not None:
        values = values - spread_scale(zero_point, shape, block)
    return values * spread_scale(scale, shape, block)
