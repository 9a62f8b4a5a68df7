"""Model-Optimizer's way to say "windowed", in exports of all its drafters: ``dflash_config.use_swa``.

It windows every layer while ``layer_types`` stay ``full_attention``, bidirectional unless ``dflash_config.causal`` says
otherwise. The window lies on the context alone (key > query - W); inside the block nothing is cut. That is z-lab's rule
as long as the block is no longer than the window.
Source: NVIDIA/Model-Optimizer at a2fbac7, ``modelopt/torch/export/plugins/hf_spec_export.py``.
"""

from __future__ import annotations

from typing import Any

from dflash_hf.checkpoints.contradictions import said_causal
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["read_swa"]


def read_swa(fields: Fields, sliding: list[bool], block_size: int) -> dict[str, Any] | None:
    """Windows, what they are counted from, and causality; None where the files do not say ``use_swa``.

    Args:
        fields: the config.
        sliding: per layer, what ``layer_types`` say.
        block_size: slots of a block.
    """
    if not fields.flag("use_swa", None, drafter=True):
        return None
    if any(sliding) and not all(sliding):
        raise UnsupportedCheckpointError(
            "config.json: dflash_config.use_swa is true and only some layer_types are sliding; Model-Optimizer writes "
            "no such file, and engines disagree on what it means"
        )
    window = fields.integer("swa_window_size", None, drafter=True) or fields.integer("sliding_window", None)
    if window is None:
        raise CheckpointError(
            "config.json: dflash_config.use_swa is true, but swa_window_size and sliding_window are missing"
        )
    layers = len(sliding)
    found = {"layer_windows": [window] * layers, "layer_causal": [bool(said_causal(fields))] * layers}
    return found | ({"window_rule": "context"} if window < block_size else {})
