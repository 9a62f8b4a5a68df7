"""Several rows: decoded one after another, and brought to what plain decoding returns for the padded batch.

Plain decoding runs a batch until its last row ends. A row that ended earlier goes on being read: as padding where an
end-of-text id is set, else as tokens of its own. So does :func:`level`, where anybody will see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dflash_hf.generation.sequential import SequentialLoop
from dflash_hf.target.cache_rows import join_cache

__all__ = ["level", "row_of_arguments", "unknown_arguments"]

# The model's arguments that have a row per sequence, and where: position ids may have axes of their own before it.
_ROW_AXIS = {
    "attention_mask": 0,
    "position_ids": -2,
    "token_type_ids": 0,
    "mm_token_type_ids": 0,
    "inputs_embeds": 0,
    "input_ids": 0,
}


def unknown_arguments(kwargs: Mapping[str, Any]) -> list[str]:
    """Arguments of the model with tensors whose rows cannot be told apart."""
    return sorted(
        name for name, value in kwargs.items() if isinstance(value, Tensor) and value.dim() and name not in _ROW_AXIS
    )


def row_of_arguments(kwargs: Mapping[str, Any], row: int) -> dict[str, Any]:
    """The model's arguments of one row, still with a batch axis, of 1."""
    return {
        name: _row_of(value, _ROW_AXIS[name], row) if isinstance(value, Tensor) and name in _ROW_AXIS else value
        for name, value in kwargs.items()
    }


def _row_of(value: Tensor, axis: int, row: int) -> Tensor:
    return value if value.shape[axis] == 1 else value.narrow(axis, row, 1)  # one for all rows stays so


def level(loops: Sequence[SequentialLoop], pad: int | None, *, seen: bool, cache: Any) -> Tensor:
    """Bring finished rows to the length of the longest: token ids [B, S + n].

    Args:
        loops: one a row, each run to its end.
        pad: the padding id, or None where no end-of-text id is set.
        seen: whether the cache or outputs leave the call: padding is then read by the target as in plain decoding.
        cache: takes the rows' caches, when ``seen``.
    """
    length = max(loop.ids.shape[1] for loop in loops)
    for loop in loops:
        if pad is None:
            loop.carry_on(length)
        elif seen:
            loop.pad(length, pad)
    if seen:
        for loop in loops:
            loop.call.state.end()
        join_cache(cache, [loop.call.state.cache for loop in loops])
    return torch.cat([_padded(loop.ids, length, pad) for loop in loops])


def _padded(ids: Tensor, length: int, pad: int | None) -> Tensor:
    short = length - ids.shape[1]
    if not short:
        return ids
    assert pad is not None, "a row without end-of-text ids was not carried on"
    return torch.nn.functional.pad(ids, (0, short), value=pad)
