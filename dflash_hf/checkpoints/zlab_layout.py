"""z-lab's layout, and what its readers write in it: DFlash v1, DFlash 2, DSpark, Domino, JetSpec.

In: a ``DFlashConfig``. Out: config.json and the tensors' names. One layout in five hands: z-lab's own keys, and for
each head those of the code that trains it (SpecForge, DeepSpec, Model-Optimizer, JetSpec), as its reader here reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dflash_hf.checkpoints.expressible import beyond_v1, last_tap_problem, one_window, refuse, windows_problem
from dflash_hf.checkpoints.reading import file_name
from dflash_hf.checkpoints.rope import write_rope
from dflash_hf.checkpoints.written_body import tidy, written_body
from dflash_hf.config import DFlashConfig

__all__ = ["head_keys", "zlab_config", "zlab_name"]

_NAMES = (  # in memory -> in the files; the first that fits
    ("head.hidden_projection.", "candidate_selector.hidden_projection."),
    ("head.predecessor_codebook.weight", "candidate_selector.predecessor_codebook"),
    ("head.successor_codebook.weight", "candidate_selector.successor_codebook"),
    ("head.confidence_proj.", "confidence_head.proj."),
    ("head.prefix_gru.", "prefix_gru."),
    ("head.embed_proj.", "embed_proj."),
    ("head.", "markov_head."),
    ("fusion.adapter.", "hidden_dim_adapter.proj."),
)
_OWN = frozenset({"embedding", "draft_vocab_size"})  # an embedding and a head that come along


@dataclass(frozen=True, slots=True)
class _Hand:
    """One writer of the layout: the architecture it names, fields it has keys for, and its keys."""

    architecture: str
    sayable: Collection[str] = ()
    nested: Callable[[DFlashConfig], dict[str, Any]] = lambda config: {}
    at_top: tuple[str, ...] = ()  # nested keys that its engines look for at the top level


def zlab_config(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json in z-lab's layout, readable by old and new code of theirs, vLLM and SGLang.

    Raises:
        CheckpointError: what none of the five can say, all of it: several window lengths, windows counted from the
            anchor, an in-block rule that differs layer by layer in another way than z-lab's, taps of another width than
            the drafter without an adapter, a reduced vocabulary ...
    """
    hand, causal = _hand(config), _causal(config)
    problems = beyond_v1(config, hand.sayable) + _problems(config, hand)
    problems += windows_problem(config, "query") + last_tap_problem(config, "normed")
    if causal == "mixed":
        problems.append(f"in-block causality layer by layer ({config.layer_causal})")
    refuse("z-lab's layout", problems)
    window, nested = one_window(config), _nested(config) | hand.nested(config)
    written = {
        "architectures": [hand.architecture],
        "model_type": "qwen3",
        **written_body(config, dtype),
        "attention_bias": config.attention_bias,
        "block_size": config.block_size,
        "dflash_config": nested,
        **{key: nested[key] for key in hand.at_top},
        "max_window_layers": config.num_hidden_layers,
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "use_cache": True,
        **write_rope(config.rope_parameters),
    }
    if isinstance(causal, bool):
        written["is_causal"] = causal
    return tidy(written)


def zlab_name(name: str) -> str:
    """A tensor's name in memory as the files call it.

    >>> zlab_name("fusion.norm.weight"), zlab_name("head.markov_w1.weight"), zlab_name("head.embed_proj.0.weight")
    ('hidden_norm.weight', 'markov_head.markov_w1.weight', 'embed_proj.0.weight')
    """
    for seen, wanted in _NAMES:
        if name.startswith(seen):
            return wanted + name.removeprefix(seen)
    return file_name(name)


def head_keys(config: DFlashConfig) -> dict[str, Any]:
    """Keys of a selector with its convolutions, or of a Markov head; both layouts spell them alike."""
    head = config.head
    if head["kind"] == "selector":
        convolution = config.convolution or {}
        return {
            "conv_kernel_size": convolution.get("kernel_size"),
            "conv_group_size": convolution.get("group_size"),
            "selector_rank": head["rank"],
            "selector_top_k": head["top_k"],
        }
    if head["kind"] == "markov":
        return {
            "markov_rank": head["rank"],
            "markov_head_type": head["type"],
            "enable_confidence_head": head.get("confidence") is not None,
            "confidence_head_with_markov": head.get("confidence") == "both",
        }
    return {}


def _nested(config: DFlashConfig) -> dict[str, Any]:
    nested: dict[str, Any] = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": config.target_layer_ids,
    }
    if config.output_multiplier is not None:
        nested["output_multiplier"] = config.output_multiplier
    if config.final_logit_softcapping is not None:
        nested["final_logit_softcapping"] = config.final_logit_softcapping
    if config.embedding_scale != 1.0:
        nested["input_embedding_scale"] = config.embedding_scale
    if config.embedding in ("target_module", "target_rows"):
        nested["block_embedding"] = config.embedding  # our own key; z-lab's PyTorch code always takes raw rows
    if not config.inherits_logit_scale and config.draft_vocab_size is None:
        nested["inherit_logit_scale"] = False  # our own key; z-lab's PyTorch code never inherits, its MLX code does
    return nested


def _dspark_keys(config: DFlashConfig) -> dict[str, Any]:
    keys = head_keys(config) or {"markov_rank": 0, "enable_confidence_head": False}
    return {"projector_type": "dspark", "shift_label": True, **keys}


def _domino_keys(config: DFlashConfig) -> dict[str, Any]:
    head, shifted = config.head, config.first_slot == 0
    return {
        "projector_type": "domino",
        "shift_label": shifted,
        "pure_draft_prefix_len": head["first_corrected"] - (0 if shifted else 1),
        "gru_hidden_dim": head["hidden"],
        "emb_dim": head["bottleneck"],
    }


def _jetspec_keys(config: DFlashConfig) -> dict[str, Any]:
    return {"causal_head": all(config.layer_causal), "target_hidden_size": config.target_hidden_size}


_TAPS_AND_MASK = ("mask_token_id", "target_layer_ids", "markov_rank", "enable_confidence_head")
_V1 = _Hand("DFlashDraftModel")
_DFLASH2 = _Hand("DFlash2DraftModel", {"head", "convolution", *_OWN}, head_keys)
_DEEPSPEC = _Hand("Qwen3DSparkModel", {"first_slot", *_OWN}, _dspark_keys, _TAPS_AND_MASK)
_DSPARK = _Hand(
    "Qwen3DSparkModel",
    {"head", "first_slot", *_OWN},
    _dspark_keys,
    (*_TAPS_AND_MASK, "markov_head_type", "confidence_head_with_markov"),
)
_DOMINO = _Hand("DominoDraftModel", {"head", "first_slot", "num_draft_tokens", *_OWN}, _domino_keys, ("emb_dim",))
_JETSPEC = _Hand("DFlashDraftModel", {"fusion"}, _jetspec_keys)
_OF_HEAD: Mapping[str, _Hand] = {"selector": _DFLASH2, "markov": _DSPARK, "gru": _DOMINO}


def _hand(config: DFlashConfig) -> _Hand:
    if (hand := _OF_HEAD.get(config.head["kind"])) is not None:
        return hand
    if config.fusion == "adapter":
        return _JETSPEC
    return _DEEPSPEC if config.first_slot == 0 else _V1


def _problems(config: DFlashConfig, hand: _Hand) -> list[str]:
    """What a hand asks of its fields beyond having keys for them."""
    found = []
    if hand is not _JETSPEC and config.target_hidden_size != config.hidden_size:
        found.append(f"taps of width {config.target_hidden_size} for a drafter of width {config.hidden_size}")
    if -1 in config.target_layer_ids and hand not in (_DSPARK, _DEEPSPEC):
        found.append("a tap of the embedding's output")
    if hand is _DFLASH2 and config.convolution is None:
        found.append("a selector without convolutions")
    if hand is _DSPARK and config.first_slot != 0:
        found.append("a Markov head whose slots predict their own place")
    if hand is _DOMINO and config.num_draft_tokens != config.block_size - 1:
        found.append(f"{config.num_draft_tokens} proposals from a block of {config.block_size}")
    if hand is _DOMINO and config.head["first_corrected"] < config.first_slot:
        found.append(f"a correction from slot {config.head['first_corrected']} on")
    return found


def _causal(config: DFlashConfig) -> bool | str | None:
    """``is_causal`` for all layers, None where z-lab's rule for a missing one says it, ``"mixed"`` if neither does."""
    sliding = [window is not None for window in config.layer_windows]
    if len(set(config.layer_causal)) == 1:
        needed = any(sliding) or config.layer_causal[0]
        return config.layer_causal[0] if needed else None
    return None if config.layer_causal == sliding else "mixed"
