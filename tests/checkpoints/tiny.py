"""Tiny checkpoints, written as the tables of the format survey say, without any code of the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, MLP, TAPS, BLOCK, MASK, VOCAB = 2, 12, 2, 1, 4, 16, 2, 4, 37, 40


def tiny_config(**changes: Any) -> dict[str, Any]:
    """A z-lab config.json as their newer code writes it; a change to None removes the key."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dflash_config": {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": [1, 3]},
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": MLP,
        "layer_types": ["full_attention"] * LAYERS,
        "max_position_embeddings": 256,
        "max_window_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "num_target_layers": 6,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000000.0, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": False,
        "transformers_version": "5.24.0",
        "use_sliding_window": False,
        "vocab_size": VOCAB,
    } | changes
    kept = {"sliding_window", "rope_scaling"}
    return {key: value for key, value in config.items() if value is not None or key in kept}


def tiny_tensors(config: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random weights under z-lab's names and shapes."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 0.4, around: float = 0.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale + around).to(dtype)

    width, inner = config["hidden_size"], config["intermediate_size"]
    head = config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    taps = len(config.get("dflash_config", config).get("target_layer_ids", config.get("target_layer_ids", [1, 3])))
    tensors = {"fc.weight": random(width, taps * width)}
    for norm in ("hidden_norm", "norm"):
        tensors[f"{norm}.weight"] = random(width, around=1.0)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = random(width, around=1.0)
        for name, shape in (
            ("q_proj", (queries, width)),
            ("k_proj", (keys, width)),
            ("v_proj", (keys, width)),
            ("o_proj", (width, queries)),
        ):
            tensors[f"{prefix}self_attn.{name}.weight"] = random(*shape)
            if config.get("attention_bias"):
                tensors[f"{prefix}self_attn.{name}.bias"] = random(shape[0])
        for norm in ("q_norm", "k_norm"):
            tensors[f"{prefix}self_attn.{norm}.weight"] = random(head, around=1.0)
        for name, shape in (("gate_proj", (inner, width)), ("up_proj", (inner, width)), ("down_proj", (width, inner))):
            tensors[f"{prefix}mlp.{name}.weight"] = random(*shape)
    return tensors


def write_tiny(
    folder: Path, config: dict[str, Any] | None = None, tensors: dict[str, Tensor] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Write a checkpoint; returns what was written."""
    config = tiny_config() if config is None else config
    tensors = tiny_tensors(config) if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return config, tensors
