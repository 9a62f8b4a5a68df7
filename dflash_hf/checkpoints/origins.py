"""Where each value of a drafter's canonical config comes from: a key of its files, a default, its tensors, its dialect.

In: a reading, and the config.json that remembers what was asked of it. Out: a phrase for each field.
"""

from __future__ import annotations

from collections.abc import Mapping

from dflash_hf.checkpoints.reading import Reading
from dflash_hf.checkpoints.recorded import Recorded

__all__ = ["FIELDS", "origins_of"]

# Canonical field -> keys that decide it, in the readers' words. A field's own name always counts.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "target_layer_ids": ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"),
    "num_target_layers": ("target_num_hidden_layers",),
    "mask_token_id": ("dspark_noise_token_id",),
    "layer_windows": ("swa_window_size", "sliding_windows", "sliding_window", "layer_types"),
    "layer_causal": ("is_causal", "causal", "causal_head", "sliding_window_non_causal", "layer_types"),
    "rope_parameters": ("rope_theta", "rope_scaling", "rope_type"),
    "rope_interleaved": ("rope_is_neox_style", "is_neox_style"),
    "context_rope_theta": ("backbone_rotary_base",),
    "first_slot": ("shift_label", "sample_from_anchor"),
    "embedding": ("block_embedding",),
    "inherits_logit_scale": ("inherit_logit_scale",),
    "embedding_scale": ("input_embedding_scale",),
    "value_scale": ("attention_value_scale",),
    "attention_gate": ("gating",),
    "attention_sinks": ("attention_sink_bias", "add_swa_attention_sink_bias"),
    "convolution": ("conv_kernel_size", "conv_group_size"),
    "head": ("selector_rank", "selector_top_k", "markov_rank", "markov_head_type", "gru_hidden_dim", "emb_dim"),
    "target_name": ("name_or_path",),
}
_BY_TENSORS = {  # field -> tensors in memory that decide it, by the start of their names
    "embedding": "embed_tokens.",
    "mask_embedding": "mask_embedding",
    "draft_vocab_size": "lm_head.",
    "reduced_vocabulary": "vocabulary",
    "fusion": "fusion.",
    "head": "head.",
    "context_projections": "layers.0.self_attn.context_",
    "attention_gate": "layers.0.self_attn.g",
    "attention_sinks": "layers.0.self_attn.sink",
}
FIELDS = (
    "target_name", "block_size", "first_slot", "num_draft_tokens", "mask_token_id", "target_layer_ids",
    "num_target_layers", "target_hidden_size", "last_tap", "num_hidden_layers", "hidden_size", "intermediate_size",
    "num_attention_heads", "num_key_value_heads", "head_dim", "layer_windows", "window_rule", "layer_causal",
    "rope_parameters", "rope_interleaved", "context_rope_theta", "max_position_embeddings", "rms_norm_eps",
    "hidden_act", "attention_bias", "attention_gate", "attention_sinks", "value_scale", "embedding",
    "mask_embedding", "embedding_scale", "vocab_size", "draft_vocab_size", "reduced_vocabulary", "output_multiplier",
    "final_logit_softcapping", "inherits_logit_scale", "head", "fusion", "context_input_norm", "context_projections",
    "convolution",
)  # fmt: skip
_OPTIONAL = ("target_name", "num_target_layers", "vocab_size")
_DERIVED = ("num_draft_tokens", "target_hidden_size", "vocab_size")  # worked out from other values where not given


def origins_of(reading: Reading, config: Recorded, dialect: str) -> dict[str, str]:
    """Field -> ``"dflash_config.block_size"``, ``"default of ..."``, ``"tensors"``, ``"derived"`` or the dialect."""
    filled = {entry.partition("=")[0]: entry.partition(": ")[2] for entry in reading.defaults}
    tensors = {*reading.names.values(), *reading.made}
    return {field: _origin(field, reading, config, filled, tensors, dialect) for field in FIELDS}


def _origin(
    field: str, reading: Reading, config: Recorded, filled: Mapping[str, str], tensors: set[str], dialect: str
) -> str:
    keys = (field, *_KEYS.get(field, ()))
    if (reason := next((filled[key] for key in keys if key in filled), None)) is not None:
        return reason
    said = [_upto(path, key) for key in keys for path in config.hits if key in path.split(".")]
    said = [path for path in said if not any(path.startswith(f"{other}.") for other in said)]
    start = _BY_TENSORS.get(field)
    found = start is not None and any(name.startswith(start) for name in tensors)
    if said:
        return ", ".join(dict.fromkeys(said)) + (" and tensors" if found and field == "head" else "")
    if found:
        return "tensors"
    if field in _OPTIONAL and getattr(reading.config, field) is None:
        return "not in the files"
    return "derived" if field in _DERIVED else f"what {dialect} means"


def _upto(path: str, key: str) -> str:
    parts = path.split(".")
    return ".".join(parts[: parts.index(key) + 1])
