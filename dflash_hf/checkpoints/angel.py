"""Reader of Tencent's AngelSpec and AngelSlim drafters and TorchSpec's.

DFlash, its gated sum of taps, DFlare, DFly and same-position DSpark.

At this border: ``context_proj``, ``context_norm`` and ``final_norm`` are z-lab's ``fc``, ``hidden_norm`` and ``norm``;
``num_target_layers`` counts taps where ``target_num_hidden_layers`` gives the depth. The tensors say which variant a
file is: AngelSpec calls all of them DFlashDraftModel.
Source: Tencent/AngelSpec at d3412be, ``angelspec/models/draft``; Tencent/AngelSlim at 67394ce.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.body import (
    QWEN3_DEFAULTS,
    agreed_taps,
    read_body,
    read_layer_types,
    read_taps,
    read_windows,
)
from dflash_hf.checkpoints.contradictions import (
    refuse_missing_variant,
    refuse_other_slots,
    refuse_unread_window,
    said_causal,
)
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.markov_keys import HEAD_NAMES, TABLE, read_markov
from dflash_hf.checkpoints.own import read_own_parts, rows_of
from dflash_hf.checkpoints.reading import Made, Reading, canonical_names
from dflash_hf.checkpoints.zlab import RENAMES, read_mask_token, read_scales
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError

__all__ = ["read"]

_BLOCK_SIZE = 8
_NAMES = (
    ("context_proj.", "fc."), ("context_norm.", "hidden_norm."), ("final_norm.", "norm."),
    ("layer_fusion_weights", "fusion.mix"), ("hidden_correction.", "head."),
    ("layer_gate", "fusion.gate"), ("candidate_norms.", "fusion.tap_norms."),
)  # fmt: skip
_MIX, _GATE, _CORRECTION = "fusion.mix", "fusion.gate", "head.down_proj.weight"


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate any of the variants."""
    fields = Fields(config, "AngelSpec's config class")
    refuse_unread_window(fields)
    refuse_other_slots(fields, 1)
    body = read_body(fields, QWEN3_DEFAULTS)
    layers = body["num_hidden_layers"]
    sliding = read_layer_types(fields, layers)
    body["layer_windows"] = read_windows(fields, sliding)
    causal = said_causal(fields)
    body["layer_causal"] = list(sliding) if causal is None else [causal] * layers
    body |= _read_taps(fields, layers)
    body["block_size"] = fields.integer("block_size", _BLOCK_SIZE, minimum=2, drafter=True)
    body["mask_token_id"] = read_mask_token(fields)
    body["target_hidden_size"] = fields.integer("target_hidden_size", None, drafter=True)
    names = canonical_names(tensors, (*RENAMES, *_NAMES, *HEAD_NAMES))
    names = {name: found.replace("_proj_target.", "_proj.context.") for name, found in names.items()}
    names = {
        name: found.replace(".k_proj.context.", ".context_k_proj.").replace(".v_proj.context.", ".context_v_proj.")
        for name, found in names.items()
    }
    body |= read_scales(fields) | _variant(fields, body, tensors, names)
    body |= read_own_parts(body, tensors, names, tables=(TABLE,))
    names, made = _warmed(fields, tensors, names)
    return Reading(DFlashConfig(**body), names, made, tuple(fields.defaults), tuple(fields.notes))


def _read_taps(fields: Fields, layers: int) -> dict[str, Any]:
    ids = agreed_taps(fields, fields.integers("target_layer_ids"))
    depth = fields.integer("target_num_hidden_layers", None, drafter=True)
    stated = fields.integer("num_target_layers", None, drafter=True)
    if depth is None and (ids is None or stated is None or stated > max(ids, default=0)):
        return read_taps(fields, layers, ids, derive=False)  # z-lab's meaning: the depth
    if ids is None:
        raise CheckpointError(
            "config.json has no target_layer_ids; add the layers the drafter was trained on (0-based)"
        )
    if stated is not None and stated not in (len(ids), depth):
        raise CheckpointError(
            f"config.json: num_target_layers is {stated}; here it counts taps, of which target_layer_ids has {len(ids)}"
        )
    if depth is not None and max(ids, default=0) >= depth:
        raise CheckpointError(f"config.json: target_layer_ids {ids} for a target of {depth} layers")
    return {"target_layer_ids": ids, "num_target_layers": depth}


def _variant(fields: Fields, body: Mapping[str, Any], tensors: TensorTable, names: Mapping[str, str]) -> dict[str, Any]:
    found = set(names.values())
    refuse_missing_variant(fields, found)
    own: dict[str, Any] = {}
    if _MIX in found:
        own["fusion"] = "mixed_concat" if "fusion.fc.weight" in found else "mixed"
        own["context_projections"] = any(".context_k_proj." in name for name in found)
        if own["fusion"] == "mixed" and not own["context_projections"]:
            raise CheckpointError(
                "the files mix taps per layer as DFlare does, but have no k_proj_target and v_proj_target"
            )
    if _GATE in found:
        own["fusion"] = "gated"
        if (body["target_hidden_size"] or body["hidden_size"]) != body["hidden_size"]:
            raise CheckpointError(
                f"config.json: target_hidden_size {body['target_hidden_size']} for a width of {body['hidden_size']}; a "
                "gated sum of taps is as wide as the drafter"
            )
    if _CORRECTION in found:
        inner = rows_of(tensors, names, "head.gate_proj.weight")
        own["head"] = {"kind": "fly", "inner": inner}
    elif TABLE in found or (fields.drafter("markov_rank") and _MIX not in found):  # DFly files carry an unused rank
        own["head"] = read_markov(fields, names)
    return own


def _warmed(fields: Fields, tensors: TensorTable, names: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Made]]:
    """The gate divided by its temperature, so that a plain softmax is the one it was trained with."""
    warmth = fields.number("gate_temperature", None, drafter=True) or 1.0
    source = next((name for name, found in names.items() if found == _GATE), None)
    if source is None or warmth == 1.0:
        return dict(names), {}
    made = Made(source, tensors[source].shape, lambda gate: gate / warmth)
    return {name: found for name, found in names.items() if name != source}, {_GATE: made}
