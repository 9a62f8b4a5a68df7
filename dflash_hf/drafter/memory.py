"""What a drafter takes of memory: its weights, and the context it keeps of a conversation.

A context holds a key and a value of every layer for each verified token; a layer with a window keeps that many.
"""

from __future__ import annotations

import torch

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter

__all__ = ["context_bytes", "weight_bytes"]


def weight_bytes(drafter: DFlashDrafter) -> int:
    """Bytes of all tensors of the drafter, as it is loaded."""
    return sum(tensor.numel() * tensor.element_size() for tensor in drafter.state_dict().values())


def context_bytes(config: DFlashConfig, tokens: int, dtype: torch.dtype) -> int:
    """Bytes that a context of ``tokens`` tokens needs; buffers grow by doubling and may stand at twice that.

    >>> shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    >>> context_bytes(DFlashConfig(**shape, layer_windows=[None, 11]), 1000, torch.float32)
    32320
    """
    rows = sum(tokens if window is None else min(tokens, window - 1) for window in config.context_windows)
    return rows * 2 * config.num_key_value_heads * config.head_dim * dtype.itemsize
