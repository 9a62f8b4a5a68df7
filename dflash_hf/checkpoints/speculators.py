"""Reader of vllm-project/speculators' drafters: dflash, dspark and dflash2.

At this border: layer ids are the host's ``hidden_states`` indices, one higher than ours; the body's config lies in
``transformer_layer_config``; the embedding is the file's own and never scaled (a file without one means the raw rows of
its verifier's); logits are the bare head's, its own or its verifier's; the head may list some of the target's ids, as
offsets in ``d2t``; a window is counted from the anchor.
Source: vllm-project/speculators at c05b95b, ``src/speculators/models``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.body import QWEN3_DEFAULTS, read_body, read_layer_types, read_windows
from dflash_hf.checkpoints.dflash2 import SELECTOR, TABLES, read_convolution, read_selector, with_weight
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.markov_keys import HEAD_NAMES, TABLE, read_markov
from dflash_hf.checkpoints.own import read_own_parts
from dflash_hf.checkpoints.reading import Reading, canonical_names, unwrapped
from dflash_hf.checkpoints.recorded import overlaid
from dflash_hf.checkpoints.reduced_head import check_head, read_vocabulary, without_lists
from dflash_hf.checkpoints.zlab import RENAMES
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["read"]

_BLOCK_SIZE, _MARKOV_RANK = 8, 256
# transformer_layer_config may be stored as a difference to its class: what a missing key means there, transformers 4
# and 5 alike.
_LAYER_DEFAULTS: Mapping[str, Any] = {
    **QWEN3_DEFAULTS,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rope_theta": 10000.0,
}
_COPIES = "verifier_"  # the verifier's head and norm, which older files carry
_WINDOW = 4096  # where use_sliding_window is true


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a speculators checkpoint of any of the three kinds."""
    kind = config["speculators_model_type"]
    fields, layer = Fields(config, "speculators' class"), _layer_fields(config)
    body = read_body(layer, _LAYER_DEFAULTS)
    sliding = read_layer_types(layer, body["num_hidden_layers"])
    body["layer_windows"] = read_windows(layer, sliding, _WINDOW if layer.top.get("use_sliding_window") else None)
    free = fields.flag("sliding_window_non_causal", kind == "dflash2")
    body["layer_causal"] = [is_sliding and not free for is_sliding in sliding]
    body["window_rule"] = "anchor"
    body |= _read_taps(fields)
    body["block_size"] = fields.integer("block_size", _BLOCK_SIZE, minimum=2)
    body["mask_token_id"] = fields.integer("mask_token_id", minimum=0)
    body["first_slot"] = 0 if fields.flag("sample_from_anchor", kind == "dspark") else 1
    left = tuple(name for name in tensors if unwrapped(name).startswith(_COPIES))
    listed = [name for name in without_lists(tensors) if name not in left]
    names = with_weight(canonical_names(listed, (*RENAMES, *HEAD_NAMES, *SELECTOR)))
    body["embedding"], body["inherits_logit_scale"] = "target_rows", False
    body |= _read_head(fields, kind, names) | read_own_parts(body, tensors, names, tables=(TABLE, *TABLES))
    check_head(fields, body, tensors)
    fields.defaults.extend(layer.defaults)
    fields.notes.extend(layer.notes)
    made = read_vocabulary(tensors, body["vocab_size"])
    body["reduced_vocabulary"] = bool(made)
    body["target_name"] = _verifier_name(config)
    return Reading(DFlashConfig(**body), names, made, tuple(fields.defaults), tuple(fields.notes), left)


def _layer_fields(config: Mapping[str, Any]) -> Fields:
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise CheckpointError("config.json: transformer_layer_config is missing; it describes the drafter's layers")
    if (model_type := layer.get("model_type", "qwen3")) != "qwen3":
        raise UnsupportedCheckpointError(
            f"config.json: the drafter's layers are {model_type!r}; this version builds 'qwen3' layers. vLLM runs "
            "others."
        )
    return Fields(_with_trained_rope(layer), "the config class of transformer_layer_config")


def _with_trained_rope(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Positions given per kind of layer: training took the sliding layers' for all of them, whatever they are."""
    rope = layer.get("rope_parameters")
    trained = rope.get("sliding_attention") if isinstance(rope, Mapping) else None
    return layer if trained is None else overlaid(layer, {"rope_parameters": trained})


def _verifier_name(config: Mapping[str, Any]) -> str | None:
    """Of the target, where the files say it."""
    inside: Any = config
    for key in ("speculators_config", "verifier"):
        inside = inside.get(key)
        if inside is None:
            return None
        if not isinstance(inside, Mapping):
            raise CheckpointError(f"config.json: {key} is {inside!r}, a JSON object is needed")
    name = inside.get("name_or_path")
    if name is not None and not isinstance(name, str):
        raise CheckpointError(f"config.json: the verifier's name_or_path is {name!r}, a string is needed")
    return name


def _read_taps(fields: Fields) -> dict[str, Any]:
    host = fields.integers("aux_hidden_state_layer_ids")
    if host is None:
        raise CheckpointError(
            "config.json has no aux_hidden_state_layer_ids; their default is [2, N // 2, N - 3] for a target of N "
            "layers, and the file does not say N: add them"
        )
    if min(host, default=0) < 0:
        raise CheckpointError(f"config.json: aux_hidden_state_layer_ids {host}: 0 is the embedding, and the lowest")
    return {
        "target_layer_ids": [index - 1 for index in host],
        "target_hidden_size": fields.integer("target_hidden_size", None),
        "num_target_layers": fields.integer("num_target_layers", None),  # only where our writer added it
        "last_tap": "raw",
    }


def _read_head(fields: Fields, kind: str, names: Mapping[str, str]) -> dict[str, Any]:
    if kind == "dspark":
        return {"head": read_markov(fields, names, _MARKOV_RANK)}
    if kind == "dflash2":
        return {"head": read_selector(fields), "convolution": read_convolution(fields)}
    return {}
