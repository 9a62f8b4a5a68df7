"""Configurations of tiny targets: every architecture we draft for, with windows of 8 and scales that are not 1.

A family names its config class, so that a release of transformers without it skips the family instead of failing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import transformers
from transformers import PreTrainedConfig

VOCAB = 96
UNTIED = {"tie_word_embeddings": False}
IDS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, **UNTIED, **IDS,
}  # fmt: skip
WINDOW = {"sliding_window": 8}
MIXED = WINDOW | {"layer_types": ["sliding_attention", "full_attention"] * 2}
CHUNK = {"attention_chunk_size": 8, "layer_types": ["chunked_attention", "full_attention"] * 2}
CONV = {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}  # fmt: skip
MLA = ROUTED | {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
SPARSE = {"index_topk": 128, "index_head_dim": 8, "index_n_heads": 2}
PER_LAYER = {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "global_head_dim": 8}
SOFT_CAP = {"final_logit_softcapping": 5.0}
GRANITE = {
    "embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.6, "attention_multiplier": 0.25,
}  # fmt: skip
M_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32,
    "window_size": 16, "fullatt_block_indexes": [0],
}  # fmt: skip
TOWER = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip
IMAGES = ("image_token", "video_token", "vision_start_token", "vision_end_token", "boi_token", "audio_token")
NO_IMAGES = {f"{name}_id": VOCAB + place for place, name in enumerate(IMAGES)}
CAUSAL, IMAGE_TEXT = "AutoModelForCausalLM", "AutoModelForImageTextToText"


@dataclass(frozen=True)
class Family:
    """One architecture: the name of its config class, that class's arguments, and the class that loads it."""

    config_class: str
    fields: Mapping[str, Any]
    auto: str = CAUSAL
    spread: float = 0.25  # of the weights; wide enough that greedy text varies

    def config(self) -> PreTrainedConfig:
        if not hasattr(transformers, self.config_class):
            pytest.skip(f"transformers {transformers.__version__} has no {self.config_class}; runs on 5.24 (make test)")
        return getattr(transformers, self.config_class)(**self.fields)


FAMILIES = {
    "llama": Family("LlamaConfig", SIZES),
    "qwen2": Family("Qwen2Config", SIZES | WINDOW | {"use_sliding_window": True, "max_window_layers": 2}),
    "qwen3": Family("Qwen3Config", SIZES),
    "qwen3_moe": Family("Qwen3MoeConfig", SIZES | MOE, spread=0.5),
    "mistral": Family("MistralConfig", SIZES | WINDOW),
    "mixtral": Family("MixtralConfig", SIZES | WINDOW | MOE),
    "gemma2": Family("Gemma2Config", SIZES | MIXED | SOFT_CAP | {"attn_logit_softcapping": 10.0}),
    "gemma3": Family("Gemma3TextConfig", SIZES | WINDOW),
    "gemma3_vlm": Family("Gemma3Config", {"text_config": SIZES | MIXED, "vision_config": TOWER, **UNTIED}, IMAGE_TEXT),
    "gemma4": Family("Gemma4TextConfig", SIZES | MIXED | PER_LAYER | SOFT_CAP),
    "gemma4_shared": Family("Gemma4TextConfig", SIZES | MIXED | PER_LAYER | {"num_kv_shared_layers": 2}, spread=0.15),
    "gemma4_vlm": Family(
        "Gemma4Config",
        {
            "text_config": SIZES | MIXED | PER_LAYER | SOFT_CAP,
            "vision_config": None,
            "audio_config": None,
            **NO_IMAGES,
            **UNTIED,
        },
        IMAGE_TEXT,
    ),
    "gpt_oss": Family("GptOssConfig", SIZES | WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "olmo2": Family("Olmo2Config", SIZES),
    "olmo3": Family("Olmo3Config", SIZES | MIXED),
    "cohere2": Family("Cohere2Config", SIZES | MIXED | {"logit_scale": 0.25}),
    "granite": Family("GraniteConfig", SIZES | GRANITE),
    "phi": Family("PhiConfig", SIZES | {"partial_rotary_factor": 0.5}),
    "phi3": Family("Phi3Config", SIZES | WINDOW),
    "glm4": Family("Glm4Config", SIZES),
    "glm4_moe": Family("Glm4MoeConfig", SIZES | ROUTED),
    "deepseek_v3": Family("DeepseekV3Config", SIZES | MLA),
    "deepseek_v32": Family("DeepseekV32Config", SIZES | MLA | SPARSE),
    "glm_moe_dsa": Family("GlmMoeDsaConfig", SIZES | MLA | SPARSE),
    "minimax_m2": Family("MiniMaxM2Config", SIZES | MOE),
    "minimax_m3": Family(
        "MiniMaxM3VLTextConfig",
        SIZES
        | MOE
        | {"dense_intermediate_size": 48, "shared_intermediate_size": 24, "rotary_dim": 8}
        | {"index_n_heads": 2, "index_head_dim": 8, "index_block_size": 4, "index_topk_blocks": 3}
        | {"layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 3},
    ),
    "lfm2": Family("Lfm2Config", SIZES | CONV),
    "llama4": Family("Llama4TextConfig", SIZES | CHUNK | {"num_local_experts": 2, "no_rope_layers": [1, 0, 1, 0]}),
    "gpt2": Family(
        "GPT2Config",
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 128, **IDS},
        spread=0.5,
    ),
    "bloom": Family(
        "BloomConfig", {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 4, "n_head": 4, **IDS, **UNTIED}, spread=0.12
    ),
    "qwen2_5_vl": Family(
        "Qwen2_5_VLConfig", {"text_config": SIZES | M_ROPE, "vision_config": VISION, **NO_IMAGES}, IMAGE_TEXT
    ),
    "qwen3_vl": Family(
        "Qwen3VLConfig",
        {
            "text_config": SIZES | M_ROPE,
            "vision_config": VISION | {"deepstack_visual_indexes": [0], "num_position_embeddings": 4},
            **NO_IMAGES,
        },
        IMAGE_TEXT,
    ),
}
