"""Reader of Poolside's Laguna drafters, from descriptions.

At this border: one ``qkv_proj`` is three projections side by side; ``g_proj`` gates the attention's output per head or
per channel; ``aux_hidden_norms`` norm each tap before they are joined; context features pass through every layer's
input norm; blocks are causal; a tap of the target's last layer is read before the final norm. Rotary positions may be
given per layer type or in ``swa_rope_parameters``, and rotate a part of each head.
Source: vllm-project/vllm pull request 46853 (``laguna_dflash.py``), turboderp-org/exllamav3
``architecture/dflash_laguna.py``, ikawrakow/ik_llama.cpp ``build_dflash.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dflash_hf.checkpoints.body import QWEN3_DEFAULTS, read_body, read_layer_types, read_taps, read_windows
from dflash_hf.checkpoints.contradictions import said_causal
from dflash_hf.checkpoints.described import from_descriptions
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.own import read_own_parts, rows_of
from dflash_hf.checkpoints.reading import Made, Reading, canonical_names
from dflash_hf.checkpoints.recorded import overlaid
from dflash_hf.checkpoints.reduced_head import check_head, read_vocabulary, without_lists
from dflash_hf.checkpoints.zlab import RENAMES, read_mask_token, read_scales
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["read"]

_NAMES = (("aux_hidden_norms.", "fusion.tap_norms."),)
_GATES = {True: "head", "per-head": "head", "per-element": "channel", False: None, "disabled": None}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_QKV = re.compile(r"^(layers\.\d+\.self_attn\.)qkv_proj(\.(weight|bias))$")


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a Laguna drafter."""
    fields = Fields(_with_one_rope(config), "Laguna's config class")
    body = read_body(fields, QWEN3_DEFAULTS, partial=True)
    layers = body["num_hidden_layers"]
    body["layer_windows"] = _read_windows(fields, layers)
    causal = said_causal(fields)
    if causal is None:
        causal = fields.filled("causal", True, "every engine drafts for Laguna causally")
    body["layer_causal"] = [causal] * layers
    body |= read_taps(fields, layers, fields.integers("target_layer_ids"), derive=False)
    body["target_hidden_size"] = fields.integer("target_hidden_size", None, drafter=True)
    body["last_tap"] = "raw"
    body["block_size"] = fields.integer("block_size", minimum=2, drafter=True)
    body |= read_scales(fields)
    body["mask_token_id"] = read_mask_token(fields)
    body["fusion"], body["context_input_norm"] = "normed", True
    names = {
        name: found.replace(".self_attn.g_proj.", ".self_attn.gate_proj.")
        for name, found in canonical_names(without_lists(tensors), (*RENAMES, *_NAMES)).items()
    }
    body["attention_gate"] = _read_gate(fields, body, rows_of(tensors, names, "layers.0.self_attn.gate_proj.weight"))
    body |= read_own_parts(body, tensors, names)
    check_head(fields, body, tensors)
    made, names = _split(body, tensors, names)
    vocabulary = read_vocabulary(tensors, body["vocab_size"])
    body["reduced_vocabulary"] = bool(vocabulary)
    note = from_descriptions("vLLM, SGLang, exllamav3, ik_llama.cpp")
    return Reading(DFlashConfig(**body), names, made | vocabulary, tuple(fields.defaults), (*fields.notes, note))


def _with_one_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with its rotary positions in one flat ``rope_parameters``, as all layers in use have them."""
    given = config.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json: rope_parameters is {given!r}, a JSON object is needed")
    nested = any(isinstance(part, Mapping) for part in given.values())
    beside = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if config.get(key) is not None}
    found: dict[str, dict[str, Any]] = {}
    types = config.get("layer_types") or [_FULL]
    if not isinstance(types, list):
        raise CheckpointError(f"config.json: layer_types is {types!r}, a list is needed")
    for kind in sorted({*map(str, types)}):
        own = (given.get(kind) or given.get(_FULL) or {}) if nested else given
        if kind == _SLIDING and config.get("swa_rope_parameters") is not None:
            own = config["swa_rope_parameters"]
        found[kind] = {**beside, **{key: value for key, value in own.items() if value is not None}}
    if any(rope != found[min(found)] for rope in found.values()):
        raise UnsupportedCheckpointError(
            f"config.json: full and sliding layers have different rotary positions ({found}); no Laguna drafter with "
            "both kinds of layers is described, and vLLM refuses one too"
        )
    dropped = ("rope_parameters", "swa_rope_parameters", "rope_theta", "partial_rotary_factor")
    return overlaid(config, {**dict.fromkeys(dropped), "rope_parameters": found[min(found)] or None})


def _read_windows(fields: Fields, layers: int) -> list[int | None]:
    """``sliding_windows``, one a layer, where it is given; ``sliding_window`` otherwise."""
    if fields.top.get("layer_types") is None:
        raise CheckpointError("config.json has no layer_types; a Laguna drafter says which of its layers are sliding")
    sliding = read_layer_types(fields, layers)
    each = fields.integers("sliding_windows")
    if not each:
        return read_windows(fields, sliding)
    if len(each) != layers or min(each) < 0:
        raise CheckpointError(f"config.json: sliding_windows {each} for {layers} layers; one window a layer is needed")
    if empty := [index for index, is_sliding in enumerate(sliding) if is_sliding and not each[index]]:
        raise CheckpointError(f"config.json: layers {empty} are sliding, but sliding_windows has 0 for them")
    return [window if is_sliding else None for window, is_sliding in zip(each, sliding, strict=True)]


def _read_gate(fields: Fields, body: Mapping[str, Any], rows: int | None) -> str | None:
    """What the gate's rows are, which the config must not contradict."""
    heads = body["num_attention_heads"]
    kinds = {None: None, heads: "head", heads * body["head_dim"]: "channel"}
    if rows not in kinds:
        raise CheckpointError(
            f"config.json: self_attn.g_proj has {rows} rows for {heads} heads of {body['head_dim']}; a gate is per "
            "head or per channel"
        )
    said = fields.top.get("gating")
    if said is None:
        return kinds[rows]
    if not isinstance(said, (bool, str)) or said not in _GATES:
        raise fields.wrong("gating", said, "'per-head', 'per-element', 'disabled', true or false")
    if _GATES[said] != kinds[rows]:
        raise CheckpointError(f"config.json: gating is {said!r}, but self_attn.g_proj has {rows or 'no'} rows")
    return kinds[rows]


def _split(
    body: Mapping[str, Any], tensors: TensorTable, names: Mapping[str, str]
) -> tuple[dict[str, Made], dict[str, str]]:
    """The fused projections as three, and the names that are left. Rows: queries, keys, values, head by head."""
    queries = body["num_attention_heads"] * body["head_dim"]
    keys = body["num_key_value_heads"] * body["head_dim"]
    made: dict[str, Made] = {}
    for name, found in names.items():
        if (match := _QKV.match(found)) is None:
            continue
        rows, *rest = tensors[name].shape
        if rows != queries + 2 * keys:
            raise CheckpointError(
                f"{name} has {rows} rows; {body['num_attention_heads']} query heads and 2 x "
                f"{body['num_key_value_heads']} key and value heads of {body['head_dim']} are {queries + 2 * keys}"
            )
        start = 0
        for part, count in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            made[f"{match[1]}{part}{match[2]}"] = Made(name, (count, *rest), _rows(start, start + count))
            start += count
    return made, {name: found for name, found in names.items() if _QKV.match(found) is None}


def _rows(first: int, end: int) -> Any:
    def take(fused: Tensor) -> Tensor:
        return fused[first:end].contiguous()

    return take
