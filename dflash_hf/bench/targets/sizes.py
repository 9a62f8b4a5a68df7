"""Small values for the fields that configs share: the words of the field, whoever uses them.

``TEXT`` is for decoders, ``TOWER`` for what stands beside one (images, sound), which no text ever runs through.
A field that a config has and no table names keeps its default.
"""

from __future__ import annotations

from typing import Any

__all__ = ["COMPRESSED", "HEAD_DIM", "LAYERS", "TEXT", "TOWER", "VOCAB", "WINDOW"]

VOCAB = 96
WIDTH, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS, EXPERTS, POSITIONS, WINDOW = 32, 4, 2, 8, 48, 4, 4, 512, 8

_WIDTHS = """
    hidden_size d_model n_embd dim emb_dim embedding_size embedding_dim embed_dim word_embed_proj_dim lru_width
    attention_hidden_size decoder_hidden_size hidden_dim input_embedding_size output_embedding_size
"""
_INNER = """
    intermediate_size n_inner d_ff ffn_dim dff d_inner feed_forward_size ffn_hidden_size decoder_ffn_dim
    encoder_ffn_dim dense_intermediate_size intermediate_size_mlp shared_intermediate_size
    shared_experts_intermediate_size dim_ff
"""
_EXPERT_INNER = """
    moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size
    expert_ffn_hidden_size moe_hidden_size share_expert_dim
"""
_LAYERS = """
    num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers
    num_encoder_layers layers num_blocks
"""
_HEADS = """
    num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads attention_heads
    num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads linear_num_heads
    num_sliding_attention_heads
"""
_KV_HEADS = """
    num_key_value_heads swa_num_key_value_heads num_kv_heads multi_query_groups num_query_groups
"""
_HEAD_DIMS = """
    head_dim d_kv attention_head_dim attention_head_size dim_head d_head swa_head_dim kv_channels qk_rope_head_dim
    qk_nope_head_dim v_head_dim index_head_dim global_head_dim swa_v_head_dim linear_head_dim linear_key_head_dim
    linear_value_head_dim mamba_d_state ssm_state_size state_size
"""
_EXPERTS = """
    num_experts num_local_experts n_routed_experts moe_num_experts num_routed_experts
"""
_POSITIONS = """
    max_position_embeddings n_positions n_ctx max_seq_len model_max_length context_length max_target_positions
    max_source_positions max_sequence_length
"""
_WINDOWS = """
    sliding_window sliding_window_size attention_chunk_size attention_window_size local_attention window_size
"""


def _each(names: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


TEXT: dict[str, Any] = {
    "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8,
    **_each(_WIDTHS, WIDTH), **_each(_INNER, INNER), **_each(_EXPERT_INNER, 24), **_each(_LAYERS, LAYERS),
    **_each(_HEADS, HEADS), **_each(_KV_HEADS, KV_HEADS), **_each(_HEAD_DIMS, HEAD_DIM), **_each(_EXPERTS, EXPERTS),
    **_each(_POSITIONS, POSITIONS), **_each(_WINDOWS, WINDOW),
    **_each("num_experts_per_tok num_experts_per_token moe_topk moe_k num_experts_per_topk top_k_experts", 2),
    **_each("n_group topk_group num_expert_group first_k_dense_replace n_shared_experts num_shared_experts", 1),
    **_each("moe_num_shared_experts num_dense_layers num_nextn_predict_layers num_mtp_layers", 1),
    **_each("kv_lora_rank q_lora_rank o_lora_rank adapter_rank router_hidden_size", 16),
    "qk_head_dim": 2 * HEAD_DIM, "index_n_heads": 2, "index_topk": 256, "max_window_layers": 2,
    "num_kv_shared_layers": 0,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "mamba_n_heads": 4, "mamba_num_heads": 4, "mamba_d_head": 16, "mamba_head_dim": 16, "mamba_headdim": 16,
    "mamba_n_groups": 1, "mamba_ngroups": 1, "mamba_d_ssm": 64, "n_groups": 1, "mamba_chunk_size": 8, "chunk_size": 8,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "tie_word_embeddings": False,
    "unpadded_vocab_size": VOCAB, "rotary_dim": 8, "attention_dropout": 0.0, "use_mamba_kernels": False,
    "use_cache": True,
}  # fmt: skip

COMPRESSED = {"num_key_value_heads": HEADS}  # where keys and values are projections of one code (MLA)

TOWER: dict[str, Any] = {
    **_each("hidden_size embed_dim d_model dim width hidden_dim encoder_hidden_size", 16),
    **_each("intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim mlp_dim", 16),
    **_each("num_hidden_layers depth layers num_layers encoder_layers decoder_layers n_layers", 1),
    **_each("num_attention_heads num_heads attention_heads encoder_attention_heads n_heads", 2),
    "num_key_value_heads": 2, "head_dim": 8, "image_size": 8, "patch_size": 4, "out_hidden_size": WIDTH,
    "text_hidden_size": WIDTH, "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1,
    "image_token_embed_dim": 32, "num_position_embeddings": 4, "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
}  # fmt: skip
