"""Targets whose layers hand on several hidden states of a token side by side: such a layer has no one output to tap.

In: a target's text config. Out: how many. Gemma 3n's layers take and give ``altup_num_inputs`` of them (AltUp), stacked
before the rows; transformers' own ``hidden_states`` are those stacks.
"""

from __future__ import annotations

from typing import Any

__all__ = ["hidden_streams"]


def hidden_streams(config: Any) -> int:
    """Hidden states of one token that each layer hands on; 1 is a common decoder."""
    return int(getattr(config, "altup_num_inputs", None) or 1)
