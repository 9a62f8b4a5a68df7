"""Keys of ``dflash_config`` that somebody here reads or detection asks about. Others are reported, not ignored."""

from __future__ import annotations

__all__ = ["NESTED_KEYS"]

NESTED_KEYS = frozenset(
    {
        "add_swa_attention_sink_bias",
        "attention_mode",
        "attention_modes",
        "attention_sink_bias",
        "attention_value_scale",
        "aux_hidden_state_layer_ids",
        "backbone_rotary_base",
        "block_embedding",
        "block_size",
        "causal",
        "causal_head",
        "conv_group_size",
        "conv_kernel_size",
        "eagle_aux_hidden_state_layer_ids",
        "enable_confidence_head",
        "final_logit_softcapping",
        "input_embedding_scale",
        "is_causal",
        "is_neox_style",
        "markov_rank",
        "mask_token_id",
        "num_anchors",
        "num_target_layers",
        "output_multiplier",
        "projector_type",
        "pure_draft_prefix_len",
        "rope_is_neox_style",
        "sample_from_anchor",
        "selector_rank",
        "selector_top_k",
        "shift_label",
        "swa_window_size",
        "target_hidden_size",
        "target_layer_ids",
        "use_swa",
    }
)
