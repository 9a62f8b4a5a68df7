"""vllm-project/speculators' layout: dflash, dspark and dflash2. The counterpart of ``speculators``.

In: a drafter. Out: config.json and tensors. Ids of taps grow by one, the body's keys go into
``transformer_layer_config``, a reduced head's ids become offsets. That layout looks embeddings up in a table and never
scales them: the drafter's own, or its verifier's raw rows; a head it borrows is the bare one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dflash_hf.checkpoints.expressible import (
    beyond_v1,
    last_tap_problem,
    one_window,
    refuse,
    scales_problem,
    windows_problem,
)
from dflash_hf.checkpoints.rope import write_rope
from dflash_hf.checkpoints.written_body import tidy, vocabulary_of, written_body
from dflash_hf.checkpoints.zlab_layout import head_keys, zlab_name
from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter

__all__ = ["speculators_config", "speculators_state"]

_VERSION = "0.7.1"  # of speculators, whose layout this is
_KINDS: Mapping[str, tuple[str, str]] = {  # our head -> their kind and the architecture they write
    "parallel": ("dflash", "DFlashDraftModel"),
    "markov": ("dspark", "DSparkDraftModel"),
    "selector": ("dflash2", "DFlash2DraftModel"),
}
_SAYABLE = frozenset(
    {"first_slot", "draft_vocab_size", "reduced_vocabulary", "embedding", "convolution"}
)  # "head" when it is one of theirs
_SETTLE = (
    ". Settle it with the target first: convert(..., target=<the loaded target>) or --target writes the target's rows, "
    "scaled as this drafter means them, into the files, and looks whether there is a scale to inherit"
)


def speculators_config(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json as speculators reads it.

    Raises:
        CheckpointError: what the layout has no word for; for a drafter whose embedding or logits have the scale of
            its target, how to settle that.
    """
    problems, borrowed = _problems(config), []
    if config.embedding in ("target", "target_module"):
        borrowed.append("no embedding of its own: it borrows the target's module, with whatever scale that has")
    if config.inherits_logit_scale:
        borrowed.append("whatever multiplier and soft cap the target has on its logits")
    refuse("speculators' layout", problems + borrowed, _SETTLE if borrowed else "")
    kind, architecture = _KINDS[config.head["kind"]]
    causal = any(config.layer_causal)
    written = {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_version": _VERSION,
        "speculators_config": _proposals(config, kind),
        "transformer_layer_config": _layer(config, dtype),
        "aux_hidden_state_layer_ids": [index + 1 for index in config.target_layer_ids],
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "draft_vocab_size": config.draft_vocab_size or vocabulary_of(config),
        "target_hidden_size": None if config.target_hidden_size == config.hidden_size else config.target_hidden_size,
        "sample_from_anchor": config.first_slot == 0,
        "sliding_window_non_causal": one_window(config) is not None and not causal,
        **head_keys(config),
        "num_target_layers": config.num_target_layers,  # our own key: theirs does not say the target's depth
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
    }
    return tidy(written)


def speculators_state(drafter: DFlashDrafter) -> dict[str, Tensor]:
    """The tensors under their names, with ``d2t`` (target id less draft id) and ``t2d`` of a reduced head."""
    state = {zlab_name(name): tensor for name, tensor in drafter.state_dict().items() if name != "vocabulary"}
    if drafter.config.reduced_vocabulary:
        ids = drafter.vocabulary.cpu()
        state["d2t"] = ids - torch.arange(len(ids))
        if (size := vocabulary_of(drafter.config)) is not None:
            state["t2d"] = torch.zeros(size, dtype=torch.bool).index_fill(0, ids, True)
    return state


def _problems(config: DFlashConfig) -> list[str]:
    kind = config.head["kind"]
    found = beyond_v1(config, {*_SAYABLE, "head"} if kind in _KINDS else _SAYABLE)
    found += windows_problem(config, "anchor") + last_tap_problem(config, "raw")
    if (kind == "selector") != (config.convolution is not None):
        found.append("convolutions without a selector" if kind != "selector" else "a selector without convolutions")
    sliding = [window is not None for window in config.layer_windows]
    if any(config.layer_causal) and config.layer_causal != sliding:
        found.append(f"in-block causality ({config.layer_causal}) other than on all sliding layers or none")
    columns, rows = config.draft_vocab_size, vocabulary_of(config)
    if not config.reduced_vocabulary and columns not in (None, rows):
        found.append(f"a head of {columns} rows for {rows} ids, without their list")
    return found + scales_problem(config)


def _layer(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    window, body = one_window(config), written_body(config, dtype)
    del body["num_target_layers"]
    return tidy(
        {
            **body,
            "model_type": "qwen3",
            "attention_bias": config.attention_bias,
            "max_window_layers": config.num_hidden_layers,
            "sliding_window": window,
            "use_sliding_window": window is not None,
            "use_cache": True,
            **write_rope(config.rope_parameters),
        }
    )


def _proposals(config: DFlashConfig, kind: str) -> dict[str, Any]:
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": config.num_draft_tokens,
        "accept_tolerance": 0.0,
        "verifier_accept_k": 1,
    }
    return {
        "algorithm": kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [greedy],
        "verifier": {"name_or_path": config.target_name, "architectures": []},
    }
