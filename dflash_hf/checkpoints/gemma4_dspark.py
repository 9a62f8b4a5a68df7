"""Reader of DeepSpec's drafters for Gemma 4: DSpark, or "dflash" (a rank of 0), over layers of Gemma 4's own shape.

At this border: the config is a copy of the target's text config, so the layers' head size and key/value heads are the
target's global ones, the activation is ``hidden_activation``, and rotary positions are the full layers' entry of a
``rope_parameters`` that may carry a stray ``rope_type`` and an empty ``rope_theta`` beside the entries. The embedding
is the files' own, times the root of the width. Every slot proposes.
Source: deepseek-ai/DeepSpec at afdfa7c, ``deepspec/modeling/dspark/gemma4``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from transformers.activations import ACT2FN

from dflash_hf.checkpoints.body import read_taps
from dflash_hf.checkpoints.described import from_descriptions
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.markov_keys import HEAD_NAMES, TABLE, read_markov
from dflash_hf.checkpoints.own import read_own_parts
from dflash_hf.checkpoints.reading import Reading, canonical_names
from dflash_hf.checkpoints.zlab import RENAMES, read_mask_token
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["read"]

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
_FULL = "full_attention"


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a Gemma 4 drafter of DeepSpec's."""
    fields = Fields(config, "DeepSpec's Gemma 4 config")
    _refuse_unknown(fields)
    same = fields.flag("attention_k_eq_v")
    body: dict[str, Any] = {key: fields.integer(key) for key in _SIZES}
    body |= {
        "layer_kind": "gemma4",
        "keys_as_values": same,
        "head_dim": fields.integer("global_head_dim"),
        "num_key_value_heads": fields.integer("num_global_key_value_heads" if same else "num_key_value_heads"),
        "rms_norm_eps": fields.number("rms_norm_eps"),
        "hidden_act": fields.choice("hidden_activation", tuple(ACT2FN)),
        "attention_bias": fields.flag("attention_bias"),
        "rope_parameters": _read_rope(fields),
        "vocab_size": fields.integer("vocab_size"),
        "final_logit_softcapping": fields.number("final_logit_softcapping", None),
        "embedding_scale": math.sqrt(body["hidden_size"]),
        "block_size": fields.integer("block_size", minimum=2, drafter=True),
        "mask_token_id": read_mask_token(fields),
        "first_slot": 0,
    }
    body |= read_taps(fields, body["num_hidden_layers"], fields.integers("target_layer_ids"), derive=False, lowest=-1)
    names = canonical_names(tensors, (*RENAMES, *HEAD_NAMES))
    body["head"] = read_markov(fields, names)
    body |= read_own_parts(body, tensors, names, tables=(TABLE,))
    if body.get("embedding") != "own":
        raise CheckpointError("the files have no embed_tokens.weight, which DeepSpec's Gemma 4 drafters ship")
    fields.notes.append(from_descriptions("DeepSpec's code"))
    return Reading(DFlashConfig(**body), names, defaults=tuple(fields.defaults), notes=tuple(fields.notes))


def _refuse_unknown(fields: Fields) -> None:
    """What DeepSpec's class refuses too, and layers it never builds."""
    if (
        fields.flag("enable_moe_block", None)
        or (fields.integer("hidden_size_per_layer_input", None, minimum=0) or 0) > 0
    ):
        raise UnsupportedCheckpointError(
            "config.json: experts or per-layer inputs in a Gemma 4 drafter; DeepSpec's class has neither"
        )
    types = fields.top.get("layer_types")
    if types is not None and not isinstance(types, list):
        raise fields.wrong("layer_types", types, "a list")
    if types is not None and {*map(str, types)} != {_FULL}:
        raise UnsupportedCheckpointError(
            f"config.json: layer_types {sorted(set(map(str, types)))} in a Gemma 4 drafter; DeepSpec builds full layers"
        )


def _read_rope(fields: Fields) -> dict[str, Any]:
    """The full layers' entry; what stands beside the entries is a leftover of how the config was copied."""
    given = fields.top.get("rope_parameters")
    rope = given.get(_FULL) if isinstance(given, Mapping) else None
    if not isinstance(rope, Mapping):
        raise CheckpointError(
            f"config.json: rope_parameters is {given!r}; a Gemma 4 drafter has a JSON object under {_FULL}"
        )
    inside = Fields(rope, fields.writer)
    kind, theta = inside.choice("rope_type", ("default", "proportional")), inside.number("rope_theta")
    read = {"rope_type": kind, "rope_theta": theta}
    part = inside.number("partial_rotary_factor", None)
    if part is not None and part > 1:
        raise inside.wrong("partial_rotary_factor", part, "a number above 0 and at most 1")
    if kind == "proportional":
        read |= {"partial_rotary_factor": 1.0 if part is None else part, "factor": inside.number("factor", None) or 1.0}
    return read
