"""The Qwen3-shaped body every dialect of this generation shares: widths, norms, rotary, attention windows.

In: ``Fields`` over a config. Out: keyword arguments of ``DFlashConfig``. The same keys mean the same everywhere; which
default a missing key takes is the writer's business, so it comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.activations import ACT2FN

from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.rope import read_interleaved, read_rope
from dflash_hf.errors import CheckpointError

__all__ = ["QWEN3_DEFAULTS", "agreed_taps", "read_body", "read_layer_types", "read_taps", "read_windows"]

# transformers' Qwen3Config: what a missing key means in a file written through it. Sizes that every writer states
# are not here; without them the file is broken.
QWEN3_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 32,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "attention_bias": False,
}
_REQUIRED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_HOST_IDS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")


def read_body(
    fields: Fields, defaults: Mapping[str, Any], *, partial: bool = False, interleaved: bool = False
) -> dict[str, Any]:
    """Sizes, activation, norms and rotary.

    Args:
        fields: the config.
        defaults: what missing keys mean; it may also hold ``_REQUIRED`` sizes and ``rope_theta``.
        partial, interleaved: drafters of this dialect rotate a part of a head, or pairs side by side, if they say so.
    """
    body: dict[str, Any] = {}
    for key in (*_REQUIRED, "num_key_value_heads", "head_dim", "max_position_embeddings"):
        body[key] = fields.integer(key, defaults[key]) if key in defaults else fields.integer(key)
    body["rms_norm_eps"] = fields.number("rms_norm_eps", defaults["rms_norm_eps"])
    body["hidden_act"] = fields.choice("hidden_act", tuple(ACT2FN), defaults["hidden_act"])
    body["attention_bias"] = fields.flag("attention_bias", defaults.get("attention_bias"))
    body["initializer_range"] = fields.number("initializer_range", None) or 0.02  # for training on; no forward reads it
    theta = defaults.get("rope_theta")
    body["rope_parameters"] = read_rope(fields, body["max_position_embeddings"], theta, partial=partial)
    body["rope_interleaved"] = read_interleaved(fields, known=interleaved)
    body["vocab_size"] = fields.integer("vocab_size", None)
    return body


def read_taps(fields: Fields, layers: int, ids: list[int] | None, *, derive: bool, lowest: int = 0) -> dict[str, Any]:
    """Tapped layers and the target's depth.

    Args:
        fields: the config.
        layers: of the drafter.
        ids: ``target_layer_ids``; where there are none, :func:`agreed_taps` looks for the host's.
        derive: spread them as z-lab's code does where none are given.
        lowest: the lowest layer, -1 where the embedding's output is one.
    """
    depth = fields.integer("num_target_layers", None, drafter=True)
    ids = agreed_taps(fields, ids)
    if ids is None:
        if not derive or depth is None:
            raise CheckpointError(
                "config.json has no target_layer_ids"
                + (" and no num_target_layers to derive them from" if derive else "")
                + "; add the layers the drafter was trained on (0-based)."
            )
        ids = fields.filled("target_layer_ids", spread_taps(depth, layers), "z-lab spreads missing ids over the depth")
    if negative := [index for index in ids if index < lowest]:
        start = "0" if lowest == 0 else "0, and the embedding is -1"
        raise CheckpointError(f"config.json: target_layer_ids {ids} has {negative}; layers are counted from {start}")
    if depth is not None and (deep := [index for index in ids if index >= depth]):
        raise CheckpointError(
            f"config.json: target_layer_ids {ids} has {deep}, but num_target_layers is {depth}, so layers are 0 to "
            f"{depth - 1}"
        )
    return {"target_layer_ids": ids, "num_target_layers": depth}


def spread_taps(depth: int, count: int) -> list[int]:
    """z-lab's ids for ``count`` drafter layers over ``depth`` target layers.

    >>> spread_taps(36, 5), spread_taps(8, 1)
    ([1, 9, 17, 25, 33], [4])
    """
    if count == 1:
        return [depth // 2]
    first, last = 1, depth - 3
    return [round(first + index * (last - first) / (count - 1)) for index in range(count)]


def agreed_taps(fields: Fields, ids: list[int] | None) -> list[int] | None:
    """Tapped layers where some writers add, or state alone, ids in ``hidden_states`` counting, one higher.

    Args:
        fields: the config.
        ids: ``target_layer_ids``, 0-based.

    Raises:
        CheckpointError: lists that disagree, or an id below the embedding's 0. Off by one would still half work.
    """
    for key in _HOST_IDS:
        host = fields.integers(key)
        if host is None:
            continue
        if min(host, default=0) < 0:
            raise CheckpointError(f"config.json: {key} {host}: 0 is the embedding, and the lowest")
        lower = [index - 1 for index in host]
        if ids is not None and lower != ids:
            raise CheckpointError(
                f"config.json: {key} is {host}, which counts from 1, and does not match target_layer_ids {ids}, which "
                "counts from 0"
            )
        ids = lower
    return ids


def read_layer_types(fields: Fields, layers: int) -> list[bool]:
    """Per layer, whether it is sliding. Missing ``layer_types``: transformers' rule for Qwen3, all full in practice."""
    types = fields.top.get("layer_types")
    if types is None:
        first = fields.top.get("max_window_layers")
        if fields.top.get("use_sliding_window") is not True or fields.top.get("sliding_window") is None:
            fields.filled("layer_types", f"{layers} x {_FULL}", f"default of {fields.writer}")
            return [False] * layers
        first = fields.integer("max_window_layers", 28, minimum=0) if first is None else first
        sliding = [index >= first for index in range(layers)]
        fields.filled("layer_types", f"sliding from layer {first}", "use_sliding_window and max_window_layers say so")
        return sliding
    if not isinstance(types, list) or (unknown := sorted({str(kind) for kind in types} - {_FULL, _SLIDING})):
        raise fields.wrong("layer_types", types if not isinstance(types, list) else unknown, f"{_FULL} or {_SLIDING}")
    if len(types) != layers:
        raise CheckpointError(f"config.json: {len(types)} layer_types for num_hidden_layers={layers}")
    return [kind == _SLIDING for kind in types]


def read_windows(fields: Fields, sliding: list[bool], default: int | None = None) -> list[int | None]:
    """Per layer, ``sliding_window`` where the layer is sliding. The file's own counting; callers shift it."""
    if not any(sliding):
        return [None] * len(sliding)
    if fields.flag("use_sliding_window", None) is False:
        raise CheckpointError(
            "config.json: layer_types has sliding layers, but use_sliding_window is false; set it to true, or the "
            "layers to full_attention"
        )
    if default is None:
        window = fields.integer("sliding_window", None)
        if window is None:
            raise CheckpointError("config.json: layer_types has sliding layers, but sliding_window is missing or null")
    else:
        window = fields.integer("sliding_window", default)
    return [window if is_sliding else None for is_sliding in sliding]
