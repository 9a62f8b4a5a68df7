"""The keys of the Qwen3-shaped body as every layout we write has them: the counterpart of ``body``."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from dflash_hf.config import DFlashConfig

__all__ = ["tidy", "vocabulary_of", "written_body"]

_KEYS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "hidden_act", "max_position_embeddings", "initializer_range", "num_target_layers",
    "attention_dropout",
)  # fmt: skip


def written_body(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Sizes, norms, layer types, vocabulary, dtype; without rotary, which is spelt in two ways."""
    return {
        **{key: getattr(config, key) for key in _KEYS},
        "vocab_size": vocabulary_of(config),
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in config.layer_windows],
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
        "transformers_version": transformers.__version__,
    }


def vocabulary_of(config: DFlashConfig) -> int | None:
    """The vocabulary of the files, else the paired target's: engines would take Qwen3's for a missing one."""
    return config.vocab_size if config.stored_vocab_size is None else config.stored_vocab_size


def tidy(written: dict[str, Any]) -> dict[str, Any]:
    """Sorted, and without keys that say nothing."""
    silent = {key for key in ("num_target_layers", "vocab_size") if written.get(key) is None}
    return {key: written[key] for key in sorted(written.keys() - silent)}
