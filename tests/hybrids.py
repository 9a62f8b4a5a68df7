"""Configurations of tiny targets with recurrent layers: those that draft, those whose continuation is wrong, others."""

from __future__ import annotations

from tests.families import IDS, IMAGE_TEXT, MLA, MOE, NO_IMAGES, SIZES, UNTIED, VISION, VOCAB, WINDOW, Family

LINEAR = {
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "shared_expert_intermediate_size": 24,
}  # fmt: skip
HALF_LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
KIMI = {
    key: value for key, value in MLA.items() if key not in ("n_routed_experts", "first_k_dense_replace", "q_lora_rank")
} | {
    "num_local_experts": 4, "linear_head_dim": 8, "linear_num_heads": 4, "layer_types": LINEAR["layer_types"],
}  # fmt: skip
BLOCKS = {"layers_block_type": ["linear_attention", "full_attention"] * 2}
NEMOTRON = BLOCKS | {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8}
ZAMBA2 = {
    "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_ngroups": 1, "mamba_d_state": 8, "chunk_size": 8,
    "layers_block_type": ["linear_attention", "hybrid"] * 2, "num_mem_blocks": 1, "adapter_rank": 8,
}  # fmt: skip
ZAMBA = {"n_mamba_heads": 2, "mamba_d_state": 8, "layers_block_type": ZAMBA2["layers_block_type"]}
SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 4, **IDS}
THREE_AXES = {
    "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5,
}  # fmt: skip

HYBRIDS = {
    "qwen3_next": Family("Qwen3NextConfig", SIZES | MOE | LINEAR, spread=0.15),
    "qwen3_5": Family("Qwen3_5TextConfig", SIZES | LINEAR),
    "qwen3_5_moe": Family("Qwen3_5MoeTextConfig", SIZES | MOE | LINEAR, spread=0.15),
    "qwen3_5_vlm": Family(
        "Qwen3_5Config",
        {
            "text_config": SIZES | LINEAR | {"rope_parameters": THREE_AXES},
            "vision_config": VISION | {"num_position_embeddings": 4},
            **NO_IMAGES,
        },
        IMAGE_TEXT,
    ),
    "kimi_linear": Family("KimiLinearConfig", SIZES | KIMI),
    "mamba2": Family("Mamba2Config", SMALL | {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1}),
    "falcon_h1": Family("FalconH1Config", SIZES | MAMBA | {"mamba_d_ssm": 64}),
    "granitemoehybrid": Family("GraniteMoeHybridConfig", SIZES | MOE | HALF_LINEAR | MAMBA),
    "bamba": Family("BambaConfig", SIZES | MAMBA | {"attn_layer_indices": [1, 3]}),
    "nemotron_h": Family("NemotronHConfig", SIZES | NEMOTRON, spread=0.1),
    "zamba2": Family("Zamba2Config", SIZES | ZAMBA2, spread=0.1),
    "olmo_hybrid": Family("OlmoHybridConfig", SIZES | LINEAR),
    "lara_mini": Family("LaraMiniConfig", SIZES | MOE | LINEAR, spread=0.15),
    "bailing_hybrid": Family("BailingHybridConfig", SIZES | MLA | MOE | HALF_LINEAR),
    "zaya": Family("ZayaConfig", SIZES | MOE | WINDOW | {"num_experts_per_tok": 1}, spread=0.15),
}
# Several tokens at once leave another state behind than the same tokens one by one (transformers 5.18 to 5.24).
DISCONTINUOUS = {
    "mamba": Family("MambaConfig", SMALL | {"state_size": 8}),
    "falcon_mamba": Family("FalconMambaConfig", SMALL | {"state_size": 8}),
    "jamba": Family("JambaConfig", SIZES | {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}),
    "zamba": Family("ZambaConfig", SIZES | ZAMBA | UNTIED),
}
# Their state is an argument or a buffer of their own, not in a cache.
ELSEWHERE = {
    "rwkv": Family("RwkvConfig", SMALL | {"attention_hidden_size": 32}),
    "recurrent_gemma": Family(
        "RecurrentGemmaConfig", SIZES | {"lru_width": 32, "block_types": ["recurrent", "attention"]}
    ),
}
