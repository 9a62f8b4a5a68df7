"""One cache of B rows as B caches of one row, and back: how a batch is decoded row after row.

The parts share no memory that a row could write into. Joining puts the rows back into the cache they came from, which
may be the user's own.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

__all__ = ["cannot_split", "join_cache", "split_cache"]

_KINDS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)
_SPLITTABLE = ("DummyLayer", *(kind.__name__ for kind in _KINDS))


def cannot_split(cache: Any, rows: int) -> str | None:
    """Why this cache cannot be decoded as ``rows`` rows one by one, or None."""
    if getattr(cache, "offloading", False):
        return "an offloaded cache"
    others = sorted({type(layer).__name__ for layer in cache.layers} - set(_SPLITTABLE))
    if others:
        return f"cache layers of type {', '.join(others)}"
    held = {len(keys) for layer in cache.layers if (keys := getattr(layer, "keys", None)) is not None and keys.numel()}
    return f"a cache that holds {', '.join(map(str, sorted(held)))}" if held - {rows} else None


def split_cache(cache: Any, rows: int) -> list[Any]:
    """``rows`` caches of one row each, holding what ``cache`` holds of it."""
    parts = [copy.copy(cache) for _ in range(rows)]
    for row, part in enumerate(parts):
        part.layers = [_row_of(layer, row) for layer in cache.layers]
    return parts


def join_cache(cache: Any, parts: Sequence[Any]) -> None:
    """Make ``cache`` hold the rows of ``parts``, which have the same length."""
    while len(cache.layers) < len(parts[0].layers):  # layers are made when first written
        cache.layers.append(copy.copy(parts[0].layers[len(cache.layers)]))
    for number, layer in enumerate(cache.layers):
        rows = [vars(part.layers[number]) for part in parts]
        vars(layer).update({name: _joined([row[name] for row in rows]) for name in rows[0]})


def _row_of(layer: Any, row: int) -> Any:
    part = copy.copy(layer)
    vars(part).update({name: _own(value, row) for name, value in vars(layer).items()})
    return part


def _own(value: Any, row: int) -> Any:
    """One row of every tensor that has rows, in memory of its own; dicts and lists are copied."""
    if isinstance(value, Tensor):
        return value[row : row + 1].clone() if value.dim() > 1 else value.clone()
    if isinstance(value, dict):
        return {key: _own(held, row) for key, held in value.items()}
    return copy.copy(value)


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat(list(values), dim=0) if first.dim() > 1 else first
    if isinstance(first, dict):
        return {key: _joined([value[key] for value in values]) for key in first}
    return first
