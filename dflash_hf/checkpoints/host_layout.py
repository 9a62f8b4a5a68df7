"""The layout of transformers' own DFlash drafter, the Muse Glimmer assistant: config.json and tensors' names.

``generate(assistant_model=..., speculation_type="dflash")`` runs such files without this package.
"""

from __future__ import annotations

from typing import Any

import torch

from dflash_hf.checkpoints.expressible import (
    beyond_v1,
    last_tap_problem,
    one_window,
    refuse,
    scales_problem,
    windows_problem,
)
from dflash_hf.checkpoints.reading import file_name
from dflash_hf.checkpoints.written_body import tidy, written_body
from dflash_hf.config import DFlashConfig

__all__ = ["host_config", "host_name"]


def host_config(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of the assistant.

    Raises:
        CheckpointError: causal layers, biases, several window lengths, a window of 1, scales, soft cap, and what is
            beyond DFlash v1.
    """
    problems = beyond_v1(config) + windows_problem(config, "query") + last_tap_problem(config, "normed")
    window = one_window(config)
    if any(config.layer_causal):
        problems.append("slots that see only earlier slots of the block (causal layers)")
    if config.attention_bias:
        problems.append("attention biases")
    if -1 in config.target_layer_ids:
        problems.append("a tap of the embedding's output")
    if config.target_hidden_size != config.hidden_size:
        problems.append(f"taps of width {config.target_hidden_size} for a drafter of width {config.hidden_size}")
    if window == 1:
        problems.append("a window of 1 position (its own)")
    problems += scales_problem(config)
    refuse("transformers' own DFlash drafter", problems)
    written = {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": "muse_glimmer_assistant",
        **written_body(config, dtype),
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
    # Our own keys, which transformers keeps and does not use: what the drafter means with targets that scale.
    if config.embedding != "target_module":
        written["block_embedding"] = config.embedding
    if config.inherits_logit_scale:
        written["inherit_logit_scale"] = True
    return tidy(written)


def host_name(name: str) -> str:
    """A tensor's name in memory as transformers' own drafter calls it.

    >>> host_name("fusion.norm.weight"), host_name("layers.0.mlp.up_proj.weight")
    ('encoder.output_norm_enc.weight', 'layers.0.mlp.up_proj.weight')
    """
    name = file_name(name)
    if name.startswith("fc."):
        return f"encoder.{name}"
    return name.replace("hidden_norm.", "encoder.output_norm_enc.", 1) if name.startswith("hidden_norm.") else name
