"""What single architectures need beside the common sizes: data by model type, nothing else."""

from __future__ import annotations

from typing import Any

__all__ = ["special_of"]

_CHAMELEON = {
    "vocabulary_map": {"<image>": 90} | {f"IMGIMG{letter}Z": 91 + place for place, letter in enumerate("ABCD")}
}
_EMU3 = {"vocabulary_map": {"<image>": 90} | {f"<|visual token {number:06d}|>": 91 + number for number in range(4)}}
_INDEXED = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 256,
            "indexer_compress_ratio": 4}  # fmt: skip
_DENSE_FIRST = {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}
_PERIODIC = {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 8}
_HASHED = {"ngram_vocab_size_base": 64, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 1}
# Blocks of keys are picked from the fourth block on: within the texts that are decoded here.
_PICKS_BLOCKS = {"layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 3, "index_n_heads": 2, "index_head_dim": 8,
                 "index_block_size": 4, "index_topk_blocks": 3}  # fmt: skip
_MOSTLY_SLIDING = {"layer_types": ["full_attention"] + ["sliding_attention"] * 3, "num_sliding_attention_heads": 8}
_M_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
_PER_TYPE_ROPE = {
    name: {"rope_type": "default", "rope_theta": 10000.0} for name in ("full_attention", "sliding_attention")
}

_SPECIAL: dict[str, dict[str, Any]] = {
    "apertus1p5": {"vision_config": {"codebook_dim": 16}},
    "bamba": {"attn_layer_indices": [1, 3]},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "chameleon": _CHAMELEON,
    "cohere_compass": {"text_config": {"rope_parameters": _PER_TYPE_ROPE}},
    "cohere_compass_text": {"rope_parameters": _PER_TYPE_ROPE},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2": {"text_config": _DENSE_FIRST},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1, "ngpt_alpha_init": 0.5},
    "emu3": _EMU3,
    "ernie4_5_vl_moe": {"text_config": {"moe_intermediate_size": [24, 24]} | _M_ROPE},
    "florence2": {
        "vision_config": {
            "patch_size": [7, 3, 3, 3],
            "embed_dim": [8] * 4,
            "num_heads": [1] * 4,
            "depths": [1] * 4,
            "num_groups": [1] * 4,
        }
    },
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "glm5_next": {"text_config": {"qk_rope_head_dim": 0}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granite4_vision": {
        "deepstack_layer_map": [(0, 1)],
        "spatial_target_layers": [0, 1, 2, 3],
        "vision_config": {"hidden_size": 64},
    },
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "jamba": _PERIODIC,
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "minimax_m3_vl": {"text_config": _PICKS_BLOCKS},
    "minimax_m3_vl_text": _PICKS_BLOCKS,
    "molmo2": {"vision_config": {"image_size": [8, 8]}, "adapter_config": {"vision_feature_layer": [0]}},
    "muse_spark": {"vision_config": {"num_hidden_layers": 4}},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "paddleocr_vl": {"text_config": _M_ROPE},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 97},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 97, "text_config": {"sliding_window": None}},  # as published
    "qwen4_exp": {"text_config": _INDEXED | _HASHED},
    "qwen4_exp_text": _INDEXED | _HASHED,
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 32]},
    "step3p7": {"text_config": _MOSTLY_SLIDING},
    "zaya": {"num_experts_per_tok": 1},
}


def special_of(model_type: str) -> dict[str, Any]:
    """Config fields of this architecture that decide over ``sizes``."""
    return _SPECIAL.get(model_type, {})
