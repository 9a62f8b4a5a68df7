"""Targets whose attention reads several tokens at once otherwise than one after another, or cannot take some back.

Drafting asks a target for the same states of a block as of its tokens one by one, and then drops those that were
rejected. What cannot be seen in a model's parts stands in a table here, by ``model_type``; recurrent layers are tried
(``target.recurrent``). Found by ``dflash-hf targets`` on transformers 5.24.
"""

from __future__ import annotations

from typing import Any

__all__ = ["reads_blocks_otherwise"]

# transformers gives them a cache with windows and a mask without: a window holds for single tokens only.
_WINDOW_IN_THE_CACHE_ONLY = frozenset({"moshi", "qwen3_omni_moe_text"})
_ONE_AT_A_TIME = frozenset({"prophetnet"})  # by an assertion in its decoder


def reads_blocks_otherwise(config: Any) -> str | None:
    """Why a block of tokens is not read, or not taken back, as its tokens one by one, or None.

    >>> from types import SimpleNamespace
    >>> reads_blocks_otherwise(SimpleNamespace(model_type="qwen3_omni_moe_text", sliding_window=None)) is None
    True
    """
    if getattr(config, "cross_attention_layers", None):  # Mllama
        return (
            "has cross-attention layers, whose rows of the cache are of pictures: with every rejected token some of "
            "them would be dropped"
        )
    if config.model_type in _ONE_AT_A_TIME:
        return "reads one token at a time once it has a cache"
    if config.model_type in _WINDOW_IN_THE_CACHE_ONLY and getattr(config, "sliding_window", None) is not None:
        return (
            f"keeps to its window of {config.sliding_window} for single tokens only, so that a block of drafted tokens "
            "would be read otherwise"
        )
    return None
