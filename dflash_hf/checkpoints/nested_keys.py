"""Keys of the nested blocks that somebody here reads or detection asks about. Others are reported, not ignored."""

from __future__ import annotations

__all__ = ["BLOCKS", "NESTED_KEYS"]

# Where drafter keys are looked for, in this order, before the top level. The last two are SpecForge's newer places for
# the keys of a head, beside the first.
BLOCKS = ("dflash_config", "dspark_config", "domino_config")

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
        "ce_loss_alpha",
        "confidence_head_alpha",
        "confidence_head_with_markov",
        "conv_group_size",
        "conv_kernel_size",
        "eagle_aux_hidden_state_layer_ids",
        "emb_dim",
        "enable_confidence_head",
        "enable_hidden_correction",
        "final_logit_softcapping",
        "fusion_type",
        "gate_temperature",
        "gru_hidden_dim",
        "hidden_correction_pos_adaptive",
        "inherit_logit_scale",
        "input_embedding_scale",
        "is_causal",
        "is_neox_style",
        "l1_loss_alpha",
        "loss_decay_gamma",
        "markov_head_type",
        "markov_pos_adaptive",
        "markov_rank",
        "mask_token_id",
        "model_arch",
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
        "target_num_hidden_layers",
        "use_confidence_head",
        "use_swa",
    }
)
