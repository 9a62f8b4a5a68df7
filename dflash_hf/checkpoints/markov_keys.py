"""The Markov head's keys and names, as the writers of DSpark drafters have them: nested, flat or under a prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.fields import Fields
from dflash_hf.drafter.heads.markov import MARKOV_TYPES
from dflash_hf.errors import CheckpointError

__all__ = ["HEAD_NAMES", "TABLE", "read_markov"]

TABLE = "head.markov_w1.weight"
HEAD_NAMES = (
    ("markov_head.", "head."), ("confidence_head.proj.", "head.confidence_proj."),
    ("markov_w1.", "head.markov_w1."), ("markov_w2.", "head.markov_w2."), ("gate_proj.", "head.gate_proj."),
    ("joint_proj.", "head.joint_proj."), ("confidence_proj.", "head.confidence_proj."),
)  # fmt: skip


def read_markov(fields: Fields, names: Mapping[str, str], rank: int | None = None) -> dict[str, Any]:
    """``DFlashConfig.head`` of a DSpark drafter; the parallel head where its rank is 0 and no confidence head is there.

    Args:
        fields: the config.
        names: of the tensors, in memory: they say whether there is a confidence head.
        rank: the writer's class default; None means the key is required.
    """
    found = {name for name in names.values() if name.startswith("head.")}
    asked = fields.drafter("markov_rank")
    rank = 0 if asked == 0 else fields.integer("markov_rank", *(() if rank is None else (rank,)), drafter=True)
    has_confidence = "head.confidence_proj.weight" in found
    if rank == 0:
        if others := sorted(name for name in found if not name.startswith("head.confidence_proj.")):
            raise CheckpointError(f"config.json: markov_rank is 0, but the files have {', '.join(others)}")
        if not found:
            return {"kind": "parallel"}
        if fields.flag("confidence_head_with_markov", None, drafter=True):
            raise CheckpointError("config.json: confidence_head_with_markov is true, but markov_rank is 0")
        return {"kind": "markov", "type": "vanilla", "rank": 0, "confidence": "hidden"}
    key = "enable_confidence_head" if fields.drafter("use_confidence_head") is None else "use_confidence_head"
    stated = fields.flag(key, None, drafter=True)
    if stated and not has_confidence:
        raise CheckpointError(f"config.json: {key} is true, but the files have no confidence head")
    both = fields.flag("confidence_head_with_markov", True, drafter=True) if has_confidence else False
    return {
        "kind": "markov",
        "type": fields.choice("markov_head_type", MARKOV_TYPES, "vanilla", drafter=True),
        "rank": rank,
        "confidence": ("both" if both else "hidden") if has_confidence else None,
    }
