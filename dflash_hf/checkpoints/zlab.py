"""Reader of z-lab's DFlash v1 files, in all revisions seen: the layout most drafters on the Hub have.

What changes at this border: nothing is shifted (their ids are 0-based layers, their window counts the query itself),
keys move from ``dflash_config`` or the top level into one config, and ``midlayer.`` is layer 0.
Source: z-lab/dflash at 44947fb and 1012959, ``dflash/model.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.body import QWEN3_DEFAULTS, read_body, read_layer_types, read_taps, read_windows
from dflash_hf.checkpoints.contradictions import refuse_other_slots, said_causal
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.mask_embedding import MASK_EMBEDDING
from dflash_hf.checkpoints.reading import Reading, canonical_names
from dflash_hf.checkpoints.swa import read_swa
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["RENAMES", "finish", "read", "read_block_embedding", "read_mask_token", "read_scales", "read_zlab_body"]

RENAMES = (("midlayer.", "layers.0."),)
_BLOCK_SIZE = 16


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a z-lab v1 checkpoint."""
    fields = Fields(config, "z-lab's writer")
    return finish(fields, read_zlab_body(fields), canonical_names(tensors, RENAMES))


def read_zlab_body(
    fields: Fields,
    block_size: int = _BLOCK_SIZE,
    *,
    lowest_tap: int = 0,
    interleaved: bool = False,
    swa: bool = False,
) -> dict[str, Any]:
    """What everybody who writes z-lab's layout says in z-lab's way.

    Args:
        fields: the config.
        block_size: where the file has none.
        lowest_tap: -1 where a writer counts the embedding's output as a tap.
        interleaved: drafters of this dialect may rotate pairs that stand side by side.
        swa: Model-Optimizer exports drafters of this dialect, windowed in its own way.
    """
    body = read_body(fields, QWEN3_DEFAULTS, interleaved=interleaved)
    layers = body["num_hidden_layers"]
    sliding = read_layer_types(fields, layers)
    size = fields.integer("block_size", block_size, minimum=2, drafter=True)
    body |= (read_swa(fields, sliding, size) if swa else None) or {
        "layer_windows": read_windows(fields, sliding),
        "layer_causal": _read_causal(fields, sliding),
    }
    body |= read_taps(fields, layers, fields.integers("target_layer_ids"), derive=True, lowest=lowest_tap)
    body["block_size"] = size
    return body


def finish(
    fields: Fields, body: dict[str, Any], names: Mapping[str, str], model_types: tuple[str, ...] = ("qwen3",)
) -> Reading:
    """The keys that every file in z-lab's layout has, whoever wrote it, and the reading.

    ``model_types``: what writers of this dialect call it; the files may name none.
    """
    model_type = fields.top.get("model_type")
    if model_type not in (None, *model_types):
        raise UnsupportedCheckpointError(
            f"config.json: model_type is {model_type!r}; a drafter in z-lab's layout is "
            f"{' or '.join(map(repr, model_types))}, whatever its target is"
        )
    fields.choice("projector_type", ("dflash", "dflash2", "domino", "dspark"), None, drafter=True)
    refuse_other_slots(fields, body.get("first_slot", 1))
    body["mask_token_id"] = read_mask_token(fields)
    body["target_hidden_size"] = fields.integer("target_hidden_size", None, drafter=True)
    body |= read_scales(fields)
    body["embedding"] = body.get("embedding") or read_block_embedding(fields, "target")
    body["mask_embedding"] = MASK_EMBEDDING in names.values()
    return Reading(DFlashConfig(**body), names, defaults=tuple(fields.defaults), notes=tuple(fields.notes))


def read_mask_token(fields: Fields, default: int | None = None) -> int:
    """The mask's id. Very old files lack it; their engines ask a tokenizer, which is not ours to guess."""
    if fields.drafter("mask_token_id") is None:
        if default is not None:
            return fields.filled("mask_token_id", default)
        raise CheckpointError(
            "config.json has no mask_token_id; add dflash_config.mask_token_id, the id of the mask token in the "
            "target's tokenizer (older files mean the token '<|MASK|>')"
        )
    return fields.integer("mask_token_id", minimum=0, drafter=True)


def read_block_embedding(fields: Fields, meant: str) -> Any:
    """Our own key, for drafters that take another embedding of the target than their layout means."""
    return fields.choice("block_embedding", ("target", "target_module", "target_rows"), None, drafter=True) or meant


def read_scales(fields: Fields) -> dict[str, Any]:
    """Factors that newer files may carry; a file without them takes the target's, so nothing is recorded as filled in.

    A multiplier of 1 is a factor that is stated: z-lab's MLX loader inherits what is unset, and nothing else.
    """
    said = fields.flag("inherit_logit_scale", None, drafter=True)  # our own key
    return {
        "output_multiplier": fields.number("output_multiplier", None, drafter=True),
        "final_logit_softcapping": fields.number("final_logit_softcapping", None, drafter=True),
        "embedding_scale": fields.number("input_embedding_scale", None, drafter=True) or 1.0,
        "inherits_logit_scale": said is not False,
    }


def _read_causal(fields: Fields, sliding: list[bool]) -> list[bool]:
    """``is_causal`` decides for all layers; without it sliding layers are causal in the block, full ones are not."""
    if (said := said_causal(fields)) is not None:
        return [said] * len(sliding)
    if any(sliding):
        fields.filled("is_causal", "sliding layers", "z-lab's rule: sliding layers causal, full layers bidirectional")
    return list(sliding)
