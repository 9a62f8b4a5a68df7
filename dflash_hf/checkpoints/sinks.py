"""Reader of drafters with attention sinks, a factor on values or a mask embedding of their own, from descriptions.

Xiaomi's MiMo drafters, and Model-Optimizer's exports with sinks. At this border: ``attention_sink_bias`` is a logit a
head that only takes part in the softmax; ``attention_value_scale`` multiplies all values; a part of each head is
rotated (``partial_rotary_factor``); context keys have their own rotary base (``backbone_rotary_base``); ``use_swa``
windows every layer, non-causally, while ``layer_types`` mean what they mean in z-lab's files; a tap of the last layer
is read before the final norm, as the engines do.
Source: vllm-project/vllm pull request 46104; ikawrakow/ik_llama.cpp ``build_dflash.cpp`` and pull request 2048.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.body import QWEN3_DEFAULTS, read_body, read_layer_types, read_taps, read_windows
from dflash_hf.checkpoints.contradictions import said_causal
from dflash_hf.checkpoints.described import from_descriptions
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.own import read_own_parts
from dflash_hf.checkpoints.reading import Reading, canonical_names
from dflash_hf.checkpoints.zlab import RENAMES, finish
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["read"]

_IN_FILES, _IN_MEMORY = ".attention_sink_bias", ".sinks"


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a MiMo drafter, or another with sinks."""
    fields = Fields(config, "MiMo's writer")
    _refuse_unknown(fields)
    body = read_body(fields, QWEN3_DEFAULTS, partial=True)
    layers = body["num_hidden_layers"]
    body["layer_windows"] = _read_windows(fields, layers)
    body["layer_causal"] = _read_causal(fields, layers)
    body |= read_taps(fields, layers, fields.integers("target_layer_ids"), derive=False)
    body["last_tap"] = "raw"
    body["block_size"] = fields.integer("block_size", minimum=2, drafter=True)
    body["value_scale"] = fields.number("attention_value_scale", None, drafter=True) or 1.0
    body["context_rope_theta"] = _read_context_theta(fields, body)
    names = {
        name: found.removesuffix(_IN_FILES) + _IN_MEMORY if found.endswith(_IN_FILES) else found
        for name, found in canonical_names(tensors, RENAMES).items()
    }
    body["attention_sinks"] = _read_sinks(fields, names)
    body |= read_own_parts(body, tensors, names)
    fields.notes.append(from_descriptions("vLLM, SGLang, ik_llama.cpp"))
    return finish(fields, body, names)


def _refuse_unknown(fields: Fields) -> None:
    wide, head = fields.integer("v_head_dim", None), fields.integer("head_dim", None)
    if wide is not None and wide != head:
        raise UnsupportedCheckpointError(
            f"config.json: v_head_dim {wide} for a head_dim of {head}; no drafter with values of another width is "
            "described. vLLM runs MiMo's drafters."
        )
    if fields.drafter("sample_from_anchor") or fields.drafter("shift_label"):
        raise UnsupportedCheckpointError(
            "config.json: attention sinks together with slots that predict the next position (NVIDIA's Nemotron 3.5 "
            "DSpark) are described in two ways that contradict each other; SGLang runs that drafter."
        )


def _read_windows(fields: Fields, layers: int) -> list[int | None]:
    """``use_swa`` windows every layer although ``layer_types`` names none; W is nested before it is at the top."""
    sliding = read_layer_types(fields, layers)
    if any(sliding):
        if not all(sliding) and fields.flag("use_swa", None, drafter=True):
            raise UnsupportedCheckpointError(
                "config.json: use_swa is true and only some layer_types are sliding; engines disagree on what it means"
            )
        own = fields.integer("swa_window_size", None, drafter=True)
        return read_windows(fields, sliding) if own is None else [own if each else None for each in sliding]
    if not fields.flag("use_swa", None, drafter=True):
        return [None] * layers
    window = fields.integer("swa_window_size", None, drafter=True) or fields.integer("sliding_window", None)
    if window is None:
        raise CheckpointError("config.json: use_swa is true, but swa_window_size and sliding_window are missing")
    return [window] * layers


def _read_causal(fields: Fields, layers: int) -> list[bool]:
    """As the config says; else ``use_swa`` means no causality, and sliding ``layer_types`` are z-lab's, causal."""
    if (said := said_causal(fields)) is not None:
        return [said] * layers
    sliding = read_layer_types(fields, layers)
    if not any(sliding) or fields.flag("use_swa", None, drafter=True):
        return [False] * layers
    fields.filled("is_causal", "sliding layers", "z-lab's rule: sliding layers causal, full layers bidirectional")
    return sliding


def _read_context_theta(fields: Fields, body: Mapping[str, Any]) -> float | None:
    theta: float | None = fields.number("backbone_rotary_base", None, drafter=True)
    if theta is None or theta == body["rope_parameters"]["rope_theta"]:
        return None
    fields.notes.append(
        f"context keys are rotated with backbone_rotary_base {theta:g}, the block with rope_theta "
        f"{body['rope_parameters']['rope_theta']:g}, and values are scaled, as ik_llama.cpp does; vLLM uses rope_theta "
        "for both and no factor"
    )
    return theta


def _read_sinks(fields: Fields, names: Mapping[str, str]) -> bool:
    """Whether there are sinks: the tensors decide, and the config must not say otherwise."""
    found = any(name.endswith(".self_attn.sinks") for name in names.values())
    keys = ("attention_sink_bias", "add_swa_attention_sink_bias")
    for key in keys:
        said = fields.flag(key, None, drafter=True)
        if said is not None and said is not found:
            have = "have" if found else "have no"
            raise CheckpointError(
                f"config.json: {key} is {str(said).lower()}, but the files {have} attention_sink_bias"
            )
    return found
