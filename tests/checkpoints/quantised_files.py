"""Tiny quantised checkpoints, and the plain weights they stand for, number by number and without the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Parts = dict[str, Tensor]  # part of a module -> tensor
Quantiser = Callable[[Tensor], tuple[Parts, Tensor]]  # a weight -> what is stored, and what that stands for


def linear_weights(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the matrices that quantisers take: projections, not norms and tables."""
    return [name for name in tensors if name.endswith("_proj.weight") or name == "fc.weight"]


def quantised(tensors: Mapping[str, Tensor], quantiser: Quantiser) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What is stored, and the same as plain weights."""
    stored, plain = dict(tensors), dict(tensors)
    for name in linear_weights(tensors):
        parts, plain[name] = quantiser(stored.pop(name))
        stored |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in parts.items()}
    return stored, plain


def each(shape: tuple[int, int], value: Callable[[int, int], float]) -> Tensor:
    return torch.tensor([[value(row, column) for column in range(shape[1])] for row in range(shape[0])])


def scales(rows: int, columns: int) -> Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows * 31 + columns)) * 0.5 + 0.1


def fp8(block: tuple[int, int] | None, name: str = "weight_scale", rank: int = 2) -> Quantiser:
    """Eight-bit floats; ``block`` None is a scale for the tensor."""

    def quantise(weight: Tensor) -> tuple[Parts, Tensor]:
        rows, columns = weight.shape
        size = block or (rows, columns)
        size = (min(size[0], rows), min(size[1], columns))
        table = scales(-(-rows // size[0]), -(-columns // size[1]))
        held = weight.to(torch.float8_e4m3fn)
        plain = each((rows, columns), lambda r, c: float(held[r, c]) * float(table[r // size[0], c // size[1]]))
        stored = table.reshape(()) if rank == 0 else table.reshape(-1) if rank == 1 else table
        return {"weight": held, name: stored}, plain

    return quantise


def integers(bits: int, group: int | None, *, asymmetric: bool = False, packed: bool = False) -> Quantiser:
    """Integers by row, or by ``group`` columns of a row; with zero points, packed into words, or both."""

    def quantise(weight: Tensor) -> tuple[Parts, Tensor]:
        rows, columns = weight.shape
        size, low, high = group or columns, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        table = scales(rows, -(-columns // size))
        zero = (torch.arange(table.numel()).reshape(table.shape) % 5 - 2) if asymmetric else torch.zeros_like(table)
        wide = lambda part, r, c: float(part[r, c // size])  # noqa: E731
        held = each(
            (rows, columns),
            lambda r, c: min(max(round(float(weight[r, c]) / wide(table, r, c) + wide(zero, r, c)), low), high),
        ).to(torch.int8)
        plain = each((rows, columns), lambda r, c: (int(held[r, c]) - wide(zero, r, c)) * wide(table, r, c))
        parts: Parts = {"weight_scale": table}
        if packed:
            parts |= {"weight_packed": words(held, bits), "weight_shape": torch.tensor([rows, columns])}
        else:
            parts["weight"] = held
        if asymmetric:
            parts["weight_zero_point"] = words(zero.T, bits).T.contiguous() if packed else zero.to(torch.int8)
        return parts, plain

    return quantise


def words(values: Tensor, bits: int) -> Tensor:
    """Rows of signed integers as 32-bit words, the first in the lowest bits."""
    out = []
    for row in values.tolist():
        number = 0
        for place, value in enumerate(row):
            number |= (int(value) + 2 ** (bits - 1)) << (place * bits)
        count = -(-len(row) * bits // 32)
        line = [(number >> (32 * word)) & 0xFFFFFFFF for word in range(count)]
        out.append([word - 2**32 if word >= 2**31 else word for word in line])
    return torch.tensor(out, dtype=torch.int32)


def groups(**weights: Any) -> dict[str, Any]:
    """compressed-tensors' ``quantization_config``."""
    return {
        "quant_method": "compressed-tensors",
        "format": weights.pop("format", "float-quantized"),
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head"],
    }
