"""What a drafter takes of memory: its weights, and the context it keeps of a conversation.

A context holds a key and a value of every layer for each verified token; a layer with a window keeps that many.
"""

from __future__ import annotations

import torch

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter

__all__ = ["context_bytes", "taps_bytes", "weight_bytes"]


def weight_bytes(drafter: DFlashDrafter) -> int:
    """Bytes of all tensors of the drafter, as it is loaded."""
    return sum(tensor.numel() * tensor.element_size() for tensor in drafter.state_dict().values())


def context_bytes(config: DFlashConfig, tokens: int, dtype: torch.dtype, draft_window: int | None = None) -> int:
    """Bytes that a context of ``tokens`` tokens needs; buffers grow by doubling and may stand at twice that.

    ``draft_window`` is :class:`dflash_hf.options.DFlashOptions`'s.

    >>> shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    >>> context_bytes(DFlashConfig(**shape, layer_windows=[None, 11]), 1000, torch.float32)
    32320
    >>> context_bytes(DFlashConfig(**shape, layer_windows=[None, 11]), 1000, torch.float32, draft_window=21)
    960
    """
    most = tokens if draft_window is None else min(tokens, draft_window - 1)
    rows = sum(most if window is None else min(most, window - 1) for window in config.context_windows)
    return rows * 2 * config.num_key_value_heads * config.head_dim * dtype.itemsize


def taps_bytes(config: DFlashConfig, tokens: int, dtype: torch.dtype) -> int:
    """Bytes of the taps of ``tokens`` tokens, in the target's dtype: what a forward over so many keeps for the drafter.

    >>> taps_bytes(DFlashConfig(target_hidden_size=64, target_layer_ids=[1, 3]), 1000, torch.bfloat16)
    256000
    """
    return tokens * len(config.target_layer_ids) * config.target_hidden_size * dtype.itemsize
