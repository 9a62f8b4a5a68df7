"""A drafter's own LM head over some of the target's ids: which ids they are, and whether the files agree.

``d2t`` holds offsets: row ``i`` of the head is the target's id ``i + d2t[i]``.
Source: vllm-project/speculators at c05b95b, ``src/speculators/models``; vLLM reads z-lab's layout the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.reading import Made
from dflash_hf.errors import CheckpointError

__all__ = ["D2T", "check_head", "read_vocabulary"]

D2T = "d2t"


def check_head(fields: Fields, body: Mapping[str, Any], tensors: TensorTable) -> None:
    """Refuse a head whose rows nobody can name. ``body`` holds ``draft_vocab_size`` (rows found) and ``vocab_size``."""
    rows, stated = body.get("draft_vocab_size"), fields.integer("draft_vocab_size", None)
    if rows is not None and stated is not None and rows != stated:
        raise CheckpointError(f"config.json: draft_vocab_size is {stated}, but lm_head.weight has {rows} rows")
    if rows is None and stated is not None and body["vocab_size"] not in (None, stated):
        raise CheckpointError(
            f"config.json: draft_vocab_size is {stated} of {body['vocab_size']} ids, but no lm_head.weight is there, "
            "and the target's head has them all"
        )
    if D2T in tensors and rows is None:
        raise CheckpointError("the files have d2t, which lists the ids of a head's rows, but no lm_head.weight")
    if D2T in tensors and tensors[D2T].shape != (rows,):
        raise CheckpointError(f"d2t is {list(tensors[D2T].shape)}, lm_head.weight has {rows} rows")
    if rows is not None and D2T not in tensors and body["vocab_size"] not in (None, rows):
        raise CheckpointError(
            f"lm_head.weight has {rows} rows of {body['vocab_size']} ids, and there is no d2t to say which"
        )


def read_vocabulary(tensors: TensorTable, vocab_size: int | None) -> dict[str, Made]:
    """How ``vocabulary``, the ids of the head's rows, is made of ``d2t``; empty without one."""
    if D2T not in tensors:
        return {}

    def ids(offsets: Tensor) -> Tensor:
        found = torch.arange(len(offsets)) + offsets.long()
        if int(found.min()) < 0 or (vocab_size is not None and int(found.max()) >= vocab_size):
            raise CheckpointError(f"d2t points at ids {int(found.min())} to {int(found.max())} of {vocab_size}")
        return found

    return {"vocabulary": Made(D2T, tensors[D2T].shape, ids)}
