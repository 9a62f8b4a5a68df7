"""Which dialect a checkpoint is written in, and who reads it.

A registry of strings, resolved late. To add a dialect: a reader file, its line in ``READERS`` and, if none of the
rules names it yet, a rule. Rules run in order and the first that answers wins; the special ones stand before the plain,
because special files often declare the plain architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from dflash_hf.checkpoints.evidence import Evidence
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.reading import Reader
from dflash_hf.checkpoints.refused import REFUSED
from dflash_hf.errors import UnsupportedCheckpointError

__all__ = ["READERS", "detect", "detect_with_evidence", "reader"]

READERS: Mapping[str, str] = {
    "zlab": "dflash_hf.checkpoints.zlab:read",
    "modelopt": "dflash_hf.checkpoints.modelopt:read",
    "muse_assistant": "dflash_hf.checkpoints.muse:read",
    "dflash2": "dflash_hf.checkpoints.dflash2:read",
    "jetspec": "dflash_hf.checkpoints.jetspec:read",
    "domino": "dflash_hf.checkpoints.domino:read",
    "dspark": "dflash_hf.checkpoints.dspark:read",
    "deepspec-dflash": "dflash_hf.checkpoints.dspark:read",
    "angelspec-dspark": "dflash_hf.checkpoints.angel:read",
    "angelspec-dflash": "dflash_hf.checkpoints.angel:read",
    "dflare": "dflash_hf.checkpoints.angel:read",
    "dfly": "dflash_hf.checkpoints.angel:read",
    "gated-dflash": "dflash_hf.checkpoints.angel:read",
    "gemma4-dspark": "dflash_hf.checkpoints.gemma4_dspark:read",
    "laguna": "dflash_hf.checkpoints.laguna:read",
    "attention-sinks": "dflash_hf.checkpoints.sinks:read",
    "own-embedding": "dflash_hf.checkpoints.own_embedding:read",
    "speculators-dflash": "dflash_hf.checkpoints.speculators:read",
    "speculators-dspark": "dflash_hf.checkpoints.speculators:read",
    "speculators-dflash2": "dflash_hf.checkpoints.speculators:read",
}


def reader(dialect: str) -> Reader:
    """The reader of ``dialect``.

    Raises:
        UnsupportedCheckpointError: the dialect is known and not read by this version.
    """
    if dialect in REFUSED:
        raise UnsupportedCheckpointError(
            f"this is {REFUSED[dialect]}. This version of dflash_hf reads {', '.join(READERS)} files, and not "
            f"'{dialect}' (docs/formats.md)."
        )
    module, _, function = READERS[dialect].partition(":")
    found: Reader = getattr(import_module(module), function)
    return found


def detect(config: Mapping[str, Any], tensors: TensorTable) -> str:
    """Name of the dialect these files are written in; see :func:`detect_with_evidence`."""
    return detect_with_evidence(config, tensors)[0]


def detect_with_evidence(config: Mapping[str, Any], tensors: TensorTable) -> tuple[str, tuple[str, ...]]:
    """Name of the dialect these files are written in, and what says so: tensors first, then keys.

    Raises:
        UnsupportedCheckpointError: nothing here is a DFlash-family drafter.
    """
    evidence = Evidence(config, tensors)
    for rule in _RULES:
        evidence.forget()
        if (dialect := rule(evidence)) is not None:
            return dialect, evidence.why()
    some = ", ".join(sorted(evidence.names)[:4]) or "none"
    raise UnsupportedCheckpointError(
        f"these files are no DFlash drafter: architectures {evidence.architectures or 'not given'}, no fc.weight and "
        f"hidden_norm.weight among the tensors ({some}, ...). Pass the drafter, not the target."
    )


def _speculators(seen: Evidence) -> str | None:
    kind = seen.config.get("speculators_model_type")
    if kind is None:
        return None
    return f"speculators-{kind}" if kind in ("dflash", "dspark", "dflash2") else "speculators-other"


def _other_family(seen: Evidence) -> str | None:
    named = seen.architecture(r"(?i)eagle|medusa|mtp") or seen.config.get("medusa_num_heads") is not None
    shown = seen.tensor(
        r"^(mtp\.|medusa_head|mask_hidden$|(layers\.\d+\.)?(eh_proj|enorm|hnorm)\.)|^midlayer\.hidden_norm\."
    )
    return "eagle" if named or shown else None


def _muse(seen: Evidence) -> str | None:
    native = seen.config.get("model_type") == "muse_glimmer_assistant"
    return "muse_assistant" if not seen.quantised and (native or seen.tensor(r"^encoder\.output_norm_enc\.")) else None


def _laguna(seen: Evidence) -> str | None:
    shown = seen.tensor(r"^aux_hidden_norms\.|self_attn\.(g_proj|qkv_proj)\.weight")
    named = seen.config.get("model_type") == "laguna" or seen.architecture("Laguna")
    return "laguna" if named or (shown and not seen.tensor(r"A_log$")) else None


def _dflash2(seen: Evidence) -> str | None:
    shown = seen.tensor(r"^candidate_selector\.|\.(attention|mlp)_conv\.")
    named = seen.architecture("DFlash2") or seen.key("projector_type") == "dflash2"
    ranked = seen.key("selector_rank") not in (None, 0)  # what is no number, the reader refuses by name
    return "dflash2" if shown or named or ranked else None


_MARKOV = r"(^|\.)markov_w[12]\.|^markov_head\."


def _treeflash(seen: Evidence) -> str | None:
    corrected = seen.tensor(_MARKOV) and seen.tensor(r"^hidden_correction\.")
    by_place = seen.tensor(r"(^|\.)pos_alpha\.") or any(
        seen.key(key) for key in ("markov_pos_adaptive", "hidden_correction_pos_adaptive")
    )
    mixed = seen.tensor(_MARKOV) and seen.tensor(r"^layer_fusion_weights$")
    return "treeflash" if corrected or by_place or mixed else None


def _is_dspark(seen: Evidence) -> bool:
    named = seen.architecture("DSpark") or seen.key("projector_type") == "dspark"
    return bool(named or seen.tensor(_MARKOV) or seen.config.get("model_type") == "dspark")


def _dspark_of_other_layers(seen: Evidence) -> str | None:
    if seen.key("dspark_target_layer_ids") is not None or seen.key("dspark_noise_token_id") is not None:
        return "dspark-fused"
    if not _is_dspark(seen):
        return None
    if seen.architecture("Gemma4DSpark") or seen.tensor(r"\.pre_feedforward_layernorm\."):
        return "gemma4-dspark"
    named = seen.architecture(r"(?i)(deepseek|kimi|glm|minimax)\w*dspark")
    if named or seen.tensor(r"\.(A_log$|kv_a_proj|q_a_proj|attn_kv_norm)|\.experts\."):
        return "dspark-backbone"
    return "dspark-sinks" if seen.tensor(r"\.attention_sink_bias$") else None


def _dspark(seen: Evidence) -> str | None:
    if not _is_dspark(seen):
        return None
    shown = seen.tensor(_MARKOV)
    if seen.tensor(r"^layer_fusion_weights$") and not shown:
        return None  # DFly, which AngelSpec configures as a DSpark without a Markov head
    if seen.tensor(r"^context_(proj|norm)\."):
        return "angelspec-dspark"  # same-position; SpecForge names its next-position drafters alike
    return "deepspec-dflash" if not shown and seen.key("markov_rank") == 0 else "dspark"


def _domino(seen: Evidence) -> str | None:
    return "domino" if seen.tensor(r"^(prefix_gru|embed_proj)\.") or seen.key("projector_type") == "domino" else None


def _tap_mixers(seen: Evidence) -> str | None:
    if seen.tensor(r"^hidden_correction\.") or seen.key("enable_hidden_correction") or seen.architecture("DFly"):
        return "dfly"
    if seen.tensor(r"^(layer_gate$|candidate_norms\.)") or seen.key("fusion_type") == "gated_sum":
        return "gated-dflash"
    if seen.tensor(r"^layer_fusion_weights$") and seen.tensor(r"^context_proj\."):
        return "dfly"  # without its correction; a DFlare mixes its taps and has no projection of all
    shown = seen.tensor(r"^layer_fusion_weights$|\.k_proj_target\.")
    return "dflare" if shown or seen.key("model_arch") == "dflare" or seen.architecture("DFlare") else None


def _jetspec(seen: Evidence) -> str | None:
    return "jetspec" if seen.tensor(r"^hidden_dim_adapter\.") or seen.key("causal_head") else None


def _sinks(seen: Evidence) -> str | None:
    shown = seen.tensor(r"\.attention_sink_bias$|^mask_embedding")
    said = seen.key("attention_sink_bias") or seen.key("add_swa_attention_sink_bias")
    scaled = seen.key("attention_value_scale") not in (None, 1, 1.0)
    return "attention-sinks" if shown or said or scaled or seen.key("backbone_rotary_base") is not None else None


def _hybrid(seen: Evidence) -> str | None:
    each = seen.key("attention_modes")
    said = [seen.key("attention_mode"), *(each if isinstance(each, list) else [each])]
    modes = {str(mode).lower() for mode in said} & {"mla", "kda"}
    return "attention-hybrid" if seen.tensor(r"\.(A_log$|kv_a_proj)") or modes else None


def _shifted(seen: Evidence) -> str | None:
    return "shifted-head" if seen.key("shift_label") or seen.key("sample_from_anchor") else None


def _quantised(seen: Evidence) -> str | None:
    return "quantised" if seen.quantised else None


def _angelspec(seen: Evidence) -> str | None:
    return "angelspec-dflash" if seen.tensor(r"^context_(proj|norm)\.") else None


def _own_embedding(seen: Evidence) -> str | None:
    drafter = seen.tensor(r"^fc\.weight$") and seen.tensor(r"^hidden_norm\.weight$")
    return "own-embedding" if drafter and seen.tensor(r"^(embed_tokens|lm_head)\.weight$|^d2t$") else None


def _plain(seen: Evidence) -> str | None:
    shown = seen.tensor(r"^fc\.weight$") and seen.tensor(r"^hidden_norm\.weight$")
    if not shown and not seen.architecture(r"^DFlashDraftModel$"):
        return None
    if seen.nested.get("use_swa") is not None or seen.nested.get("swa_window_size") is not None:
        return "modelopt"
    # Its exporter fills a template: block_size at the top, none of the keys transformers' own writer always adds.
    template = "block_size" in seen.config and "torch_dtype" in seen.config
    own_writer = {"transformers_version", "max_window_layers", "auto_map", "use_cache"} & seen.config.keys()
    return "modelopt" if template and not own_writer else "zlab"


_RULES: tuple[Callable[[Evidence], str | None], ...] = (
    _speculators,
    _other_family,
    _muse,
    _laguna,
    _treeflash,
    _dspark_of_other_layers,
    _hybrid,
    _dflash2,
    _dspark,
    _domino,
    _tap_mixers,
    _jetspec,
    _sinks,
    _shifted,
    _quantised,
    _angelspec,
    _own_embedding,
    _plain,
)
