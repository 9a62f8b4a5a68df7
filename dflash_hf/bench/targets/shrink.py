"""From an architecture's config class to a tiny config of it.

In: the class, and what this architecture needs beside the common sizes (``special``). Out: an instance. The fields of
the class are looked at, never its name: known ones get the value of ``sizes``, lists with an entry a layer are dealt
anew, so that every kind of layer occurs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dflash_hf.bench.targets.sizes import COMPRESSED, LAYERS, TEXT, TOWER

__all__ = ["tiny_config"]

_TEXT_CONFIGS = {"text_config", "llm_config", "language_config", "decoder", "decoder_config", "thinker_config"}
_PER_LAYER = ("layer_types", "layers_block_type", "block_types", "mlp_layer_types")
_FULL = "full_attention"


def tiny_config(config_class: Any, special: Mapping[str, Any] | None = None) -> Any:
    """A small config: a decoder of few layers and a window of 8; towers of one layer where there are any.

    Args:
        config_class: a ``PreTrainedConfig`` class.
        special: fields of this architecture that decide over the common ones; ``{"text_config": {...}}`` for parts.
    """
    return config_class(**_values(config_class, TEXT, special or {}))


def _values(config_class: Any, sizes: Mapping[str, Any], special: Mapping[str, Any]) -> dict[str, Any]:
    default = _default(config_class)
    parts = getattr(config_class, "sub_configs", None) or {}
    names = {each.name for each in fields(config_class)}
    values = {name: sizes[name] for name in names & sizes.keys()}
    if sizes is TEXT:
        compressed = COMPRESSED if "kv_lora_rank" in names else {}
        derived = {**compressed, **_per_layer(default), **_rotary(default)}
        values |= {name: value for name, value in derived.items() if name in names}
    for name in parts:
        own = getattr(default, name, None)
        if own is not None and not isinstance(own, dict):
            kind = TEXT if name in _TEXT_CONFIGS else TOWER
            values[name] = _values(type(own), kind, special.get(name) or {})
            if kind is TEXT or name not in special:
                values[name].setdefault("model_type", own.model_type)
    values |= {name: value for name, value in special.items() if not (name in parts and isinstance(value, Mapping))}
    return values


def _default(config_class: Any) -> Any:
    try:
        return config_class()
    except Exception:  # some classes have no valid defaults: then nothing is derived from them
        return None


def _per_layer(default: Any) -> dict[str, Any]:
    """Each kind of layer of the default, in turn, full attention last."""
    found = {}
    for name in _PER_LAYER:
        kinds = list(dict.fromkeys(getattr(default, name, None) or []))
        if not kinds:
            continue
        kinds.sort(key=lambda kind: kind == _FULL)
        found[name] = (kinds * LAYERS)[: LAYERS - 1] + kinds[-1:] if len(kinds) > LAYERS else (kinds * LAYERS)[:LAYERS]
    return found


def _rotary(default: Any) -> dict[str, Any]:
    """M-RoPE sections that fit the smaller heads; other rotary settings are left to the class."""
    rope = getattr(default, "rope_parameters", None)
    rope = rope if isinstance(rope, dict) else {}
    if "mrope_section" not in rope and "mrope_section" not in getattr(default, "ignore_keys_at_rope_validation", ()):
        return {}
    pairs = int(TEXT["head_dim"] * rope.get("partial_rotary_factor", 1.0)) // 2
    side = pairs // 3
    base = {"rope_type": "default", "rope_theta": 10000.0}
    return {"rope_parameters": {**base, **rope, "mrope_section": [pairs - 2 * side, side, side]}}
