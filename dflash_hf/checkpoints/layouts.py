"""The layouts we write: a ``DFlashConfig`` -> config.json and tensor names of z-lab's or transformers' own drafter.

Pure. What a layout cannot say is a ``CheckpointError`` that lists it, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from dflash_hf.checkpoints.reading import file_name
from dflash_hf.checkpoints.rope import write_rope
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError, OptionsError

__all__ = ["LAYOUTS", "Layout", "beyond_v1", "host_config", "host_name", "layout", "zlab_config"]

Layout = tuple[Callable[[DFlashConfig, torch.dtype], dict[str, Any]], Callable[[str], str]]


def zlab_config(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json in z-lab's layout, readable by old and new code of theirs, vLLM and SGLang.

    Raises:
        CheckpointError: several window lengths, an in-block rule that differs layer by layer in another way than
            z-lab's, or taps of another width than the drafter.
    """
    causal, problems = _zlab_causal(config), beyond_v1(config) + _windows_problem(config)
    if config.target_hidden_size != config.hidden_size:
        problems.append(f"taps of width {config.target_hidden_size} for a drafter of width {config.hidden_size}")
    if causal == "mixed":
        problems.append(f"in-block causality layer by layer ({config.layer_causal})")
    _refuse("z-lab's layout", problems)
    window = _window(config)
    written = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **_body(config, dtype),
        "attention_bias": config.attention_bias,
        "block_size": config.block_size,
        "dflash_config": _zlab_nested(config),
        "max_window_layers": config.num_hidden_layers,
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "use_cache": True,
        **write_rope(config.rope_parameters),
    }
    if isinstance(causal, bool):
        written["is_causal"] = causal
    return _tidy(written)


def host_config(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of transformers' Muse Glimmer assistant, for ``generate(..., speculation_type="dflash")``.

    Raises:
        CheckpointError: causal layers, biases, several window lengths, a window of 1, scales, soft cap.
    """
    problems = beyond_v1(config) + _windows_problem(config)
    if any(config.layer_causal):
        problems.append("slots that see only earlier slots of the block (causal layers)")
    if config.attention_bias:
        problems.append("attention biases")
    if config.target_hidden_size != config.hidden_size:
        problems.append(f"taps of width {config.target_hidden_size} for a drafter of width {config.hidden_size}")
    if _window(config) == 1:
        problems.append("a window of 1 position (its own)")
    for name, neutral in (("embedding_scale", 1.0), ("output_multiplier", 1.0), ("final_logit_softcapping", None)):
        if getattr(config, name) != neutral:
            problems.append(f"{name}={getattr(config, name)}")
    _refuse("transformers' own DFlash drafter", problems)
    window = _window(config)
    written = {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": "muse_glimmer_assistant",
        **_body(config, dtype),
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": config.target_layer_ids,
        # Theirs counts the keys beside the query's own, ours includes it. Unused, but required, when no layer slides.
        "sliding_window": 2048 if window is None else window - 1,
        "rope_parameters": dict(config.rope_parameters),
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return _tidy(written)


def host_name(name: str) -> str:
    """A tensor's name in memory as transformers' own drafter calls it.

    >>> host_name("fusion.norm.weight"), host_name("layers.0.mlp.up_proj.weight")
    ('encoder.output_norm_enc.weight', 'layers.0.mlp.up_proj.weight')
    """
    name = file_name(name)
    if name.startswith("fc."):
        return f"encoder.{name}"
    return name.replace("hidden_norm.", "encoder.output_norm_enc.", 1) if name.startswith("hidden_norm.") else name


def layout(to: str) -> Layout:
    """The layout called ``to``."""
    if to not in LAYOUTS:
        raise OptionsError(f"to={to!r} is no layout; known: {', '.join(LAYOUTS)}")
    return LAYOUTS[to]


def _body(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    name = str(dtype).removeprefix("torch.")
    return {
        **{
            key: getattr(config, key)
            for key in (
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "rms_norm_eps",
                "hidden_act",
                "max_position_embeddings",
                "initializer_range",
                "num_target_layers",
                "attention_dropout",
            )
        },
        # Where the files said nothing, the paired target's: engines would take Qwen3's for a missing one.
        "vocab_size": config.vocab_size if config.stored_vocab_size is None else config.stored_vocab_size,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in config.layer_windows],
        "tie_word_embeddings": False,
        "dtype": name,
        "transformers_version": transformers.__version__,
    }


def _zlab_nested(config: DFlashConfig) -> dict[str, Any]:
    nested: dict[str, Any] = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": config.target_layer_ids,
    }
    if config.output_multiplier != 1.0:
        nested["output_multiplier"] = config.output_multiplier
    if config.final_logit_softcapping is not None:
        nested["final_logit_softcapping"] = config.final_logit_softcapping
    if config.embedding_scale != 1.0:
        nested["input_embedding_scale"] = config.embedding_scale
    if config.embedding != "target":
        nested["block_embedding"] = config.embedding  # our own key; z-lab's PyTorch code always takes raw rows
    return nested


def _zlab_causal(config: DFlashConfig) -> bool | str | None:
    """``is_causal`` for all layers, None where z-lab's rule for a missing one says it, ``"mixed"`` if neither does."""
    sliding = [window is not None for window in config.layer_windows]
    if len(set(config.layer_causal)) == 1:
        needed = any(sliding) or config.layer_causal[0]
        return config.layer_causal[0] if needed else None
    return None if config.layer_causal == sliding else "mixed"


def _window(config: DFlashConfig) -> int | None:
    return next((window for window in config.layer_windows if window is not None), None)


# What DFlash v1 does not have, the value that means "not there", and what to call it.
_NEUTRAL: Mapping[str, tuple[Any, str]] = {
    "window_rule": ("query", "windows counted from the anchor or on the context alone"),
    "first_slot": (1, "an anchor's slot that proposes"),
    "mask_embedding": (False, "an embedding of its own for the mask"),
    "draft_vocab_size": (None, "an LM head of its own"),
    "head": ({"kind": "parallel"}, "a head that corrects or selects proposals"),
    "fusion": ("concat", "another fusion of taps than one projection"),
    "last_tap": ("normed", "a last tap from before the final norm"),
    "context_input_norm": (False, "context features that pass the layers' input norms"),
    "context_projections": (False, "projections of the context's own"),
    "layer_kind": ("qwen3", "layers of Gemma 4's shape"),
    "convolution": (None, "convolutions"),
    "attention_gate": (None, "gated attention"),
    "attention_sinks": (False, "attention sinks"),
    "value_scale": (1.0, "a factor on values"),
    "rope_interleaved": (False, "interleaved rotary pairs"),
    "context_rope_theta": (None, "a rotary base of the context's own"),
}


def beyond_v1(config: DFlashConfig) -> list[str]:
    """What this drafter has beyond DFlash v1, in words."""
    found = [words for name, (neutral, words) in _NEUTRAL.items() if getattr(config, name) != neutral]
    if config.embedding == "own":
        found.append("an embedding of its own")
    if "partial_rotary_factor" in config.rope_parameters:
        found.append("rotary positions for a part of each head")
    if config.num_draft_tokens != config.block_size - config.first_slot:
        found.append(f"{config.num_draft_tokens} proposals from a block of {config.block_size}")
    return found


def _windows_problem(config: DFlashConfig) -> list[str]:
    lengths = sorted({window for window in config.layer_windows if window is not None})
    return [f"windows of several lengths ({', '.join(map(str, lengths))})"] if len(lengths) > 1 else []


def _refuse(where: str, problems: list[str]) -> None:
    if problems:
        raise CheckpointError(f"{where} cannot express this drafter: it has {'; '.join(problems)}")


def _tidy(written: dict[str, Any]) -> dict[str, Any]:
    for key in ("num_target_layers", "vocab_size"):
        if written[key] is None:
            del written[key]
    return dict(sorted(written.items()))


LAYOUTS: Mapping[str, Layout] = {"zlab": (zlab_config, file_name), "host": (host_config, host_name)}
