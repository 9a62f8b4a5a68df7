"""Targets whose layers hand on several hidden states of a token side by side: such a layer has no one output to tap.

In: a target's text config. Out: how many. Gemma 3n's layers take and give ``altup_num_inputs`` of them (AltUp), stacked
before the rows; those of DeepSeek V4, HY V4 and GLM 5 (``hc_mult``) and Qwen4 (``hc_count``) as many as their
hyper-connections have, after the tokens or side by side in the width. Names as in transformers 5.18 to 5.24.
"""

from __future__ import annotations

from typing import Any

__all__ = ["hidden_streams"]

_COUNTS = ("altup_num_inputs", "hc_mult", "hc_count")


def hidden_streams(config: Any) -> int:
    """Hidden states of one token that each layer hands on; 1 is a common decoder."""
    return max(int(getattr(config, name, None) or 1) for name in _COUNTS)
