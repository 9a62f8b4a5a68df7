"""A drafter's own LM head over some of the target's ids: which ids they are, and whether the files agree.

``d2t`` holds offsets: row ``i`` of the head is the target's id ``i + d2t[i]``. ``t2d`` marks the same ids among the
target's; it is not needed, but must not say otherwise.
Source: vllm-project/speculators at c05b95b, ``src/speculators/models``; vLLM reads z-lab's layout the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.reading import Made, unwrapped
from dflash_hf.errors import CheckpointError

__all__ = ["check_head", "is_list", "read_vocabulary", "without_lists"]

_D2T, _T2D = "d2t", "t2d"


def is_list(name: str) -> bool:
    """Whether a tensor of the files lists ids instead of being a weight."""
    return unwrapped(name) in (_D2T, _T2D)


def without_lists(tensors: TensorTable) -> list[str]:
    """Names of the tensors that are weights, in the files' order."""
    return [name for name in tensors if not is_list(name)]


def check_head(fields: Fields, body: Mapping[str, Any], tensors: TensorTable) -> None:
    """Refuse a head whose rows nobody can name. ``body`` holds ``draft_vocab_size`` (rows found) and ``vocab_size``."""
    rows, stated = body.get("draft_vocab_size"), fields.integer("draft_vocab_size", None)
    offsets, marks = (_named(tensors, name) for name in (_D2T, _T2D))
    if rows is not None and stated is not None and rows != stated:
        raise CheckpointError(f"config.json: draft_vocab_size is {stated}, but lm_head.weight has {rows} rows")
    if rows is None and stated is not None and body["vocab_size"] not in (None, stated):
        raise CheckpointError(
            f"config.json: draft_vocab_size is {stated} of {body['vocab_size']} ids, but no lm_head.weight is there, "
            "and the target's head has them all"
        )
    if marks is not None and offsets is None:
        raise CheckpointError("the files have t2d, which marks ids of a reduced head, but no d2t to say its rows' ids")
    if offsets is not None and rows is None:
        raise CheckpointError("the files have d2t, which lists the ids of a head's rows, but no lm_head.weight")
    if offsets is not None and tensors[offsets].shape != (rows,):
        raise CheckpointError(f"d2t is {list(tensors[offsets].shape)}, lm_head.weight has {rows} rows")
    if rows is not None and offsets is None and body["vocab_size"] not in (None, rows):
        raise CheckpointError(
            f"lm_head.weight has {rows} rows of {body['vocab_size']} ids, and there is no d2t to say which"
        )


def read_vocabulary(tensors: TensorTable, vocab_size: int | None) -> dict[str, Made]:
    """How ``vocabulary``, the ids of the head's rows, is made of ``d2t``; empty without one."""
    source, beside = _named(tensors, _D2T), _named(tensors, _T2D)
    if source is None:
        return {}

    def ids(offsets: Tensor, marks: Tensor | None = None) -> Tensor:
        found = torch.arange(len(offsets)) + offsets.long()
        if int(found.min()) < 0 or (vocab_size is not None and int(found.max()) >= vocab_size):
            raise CheckpointError(f"d2t points at ids {int(found.min())} to {int(found.max())} of {vocab_size}")
        if marks is not None:
            _check_marks(found, marks)
        return found

    more = () if beside is None else (beside,)
    return {"vocabulary": Made(source, tensors[source].shape, ids, more)}


def _named(tensors: TensorTable, wanted: str) -> str | None:
    """What the files call this list."""
    return next((name for name in tensors if unwrapped(name) == wanted), None)


def _check_marks(ids: Tensor, marks: Tensor) -> None:
    """``ids`` [W] of ``d2t`` against ``marks`` [V], which is ``t2d``."""
    listed, marked = set(ids.tolist()), set(marks.nonzero().flatten().tolist())
    if marks.dim() != 1 or listed != marked:
        odd = ", ".join(map(str, sorted(listed ^ marked)[:6]))
        raise CheckpointError(
            f"d2t and t2d contradict each other: d2t lists {len(listed)} ids for the head's rows, t2d "
            f"{list(marks.shape)} marks {len(marked)}; ids of one and not of the other: {odd}. One of them is of "
            "another drafter"
        )
