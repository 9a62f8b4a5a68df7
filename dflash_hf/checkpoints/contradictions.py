"""Keys that must agree with what a file was read as: which slot proposes, which projector and variant it names.

In: the config and what was read. Out: nothing, or a ``CheckpointError`` before a drafter is built that is off by one or
lacks a part.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dflash_hf.checkpoints.fields import Fields
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["refuse_missing_variant", "refuse_other_slots", "refuse_unread_window", "said_causal"]

_VARIANTS: dict[str, dict[Any, str | None]] = {  # what a config may name -> the tensor in memory that makes it so
    "model_arch": {"dflash": None, "dflare": "fusion.mix", "dfly": "fusion.mix"},
    "fusion_type": {"concat_fc": None, "gated_sum": "fusion.gate"},
    "enable_hidden_correction": {False: None, True: "head.down_proj.weight"},
}


def refuse_other_slots(fields: Fields, first_slot: int) -> None:
    """``shift_label`` and ``sample_from_anchor`` say that slot 0 proposes: as the reader has it, or not at all."""
    for key in ("shift_label", "sample_from_anchor"):
        said = fields.flag(key, None, drafter=True)
        if said is not None and said != (first_slot == 0):
            proposes = "slot 0 proposes the first token" if first_slot == 0 else "slot 1 proposes the first token"
            raise CheckpointError(
                f"config.json: {key} is {said}, but in a drafter of this dialect {proposes}; read so it would be off "
                "by one everywhere. Correct the key, or the keys that make it this dialect"
            )


def refuse_unread_window(fields: Fields) -> None:
    """Model-Optimizer's way to say "windowed" stands in ``dflash_config`` while ``layer_types`` say "full"."""
    if fields.drafter("use_swa"):
        raise UnsupportedCheckpointError(
            "config.json: dflash_config.use_swa windows all layers of Model-Optimizer's drafters; in this "
            "dialect nobody describes it, and without its window the drafter would be another one"
        )


def refuse_missing_variant(fields: Fields, names: Collection[str]) -> None:
    """A config that names a variant whose tensors are not there: read without them it would be another drafter."""
    for key, tensors in _VARIANTS.items():
        if (said := fields.drafter(key)) is None:
            continue
        if not isinstance(said, (str, bool)) or said not in tensors:
            raise fields.wrong(key, said, " or ".join(map(repr, tensors)))
        needed = tensors[said]
        if needed is not None and needed not in names:
            raise CheckpointError(f"config.json: {key} is {said!r}, but the files have no tensor for it")


def said_causal(fields: Fields) -> bool | None:
    """What ``is_causal`` and ``causal``, two names of one thing, say of all layers; None where neither is given."""
    said = {key: fields.flag(key, None, drafter=True) for key in ("is_causal", "causal")}
    given = {value for value in said.values() if value is not None}
    if len(given) > 1:
        raise CheckpointError(f"config.json contradicts itself: is_causal={said['is_causal']}, causal={said['causal']}")
    return given.pop() if given else None
