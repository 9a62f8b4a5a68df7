"""The page on long contexts says what the code computes for the drafters it names."""

from __future__ import annotations

from pathlib import Path

import torch

from dflash_hf.cli.lines import megabytes
from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.memory import context_bytes, taps_bytes

PAGE = Path(__file__).parents[2] / "docs" / "long-contexts.md"
SHAPE = {"num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
FULL = DFlashConfig(hidden_size=4096, target_layer_ids=[1, 9, 17, 25, 33], **SHAPE)
MIXED = DFlashConfig(hidden_size=5120, target_layer_ids=[1, 16, 31, 46, 61], layer_windows=[2048] * 4 + [None], **SHAPE)


def test_the_table_of_bytes_is_what_the_formulas_give():
    half, page = torch.bfloat16, PAGE.read_text(encoding="utf-8")
    for tokens in (4096, 32768, 262144):
        contexts = [context_bytes(config, tokens, half, window) for config in (FULL, MIXED) for window in (None, 4096)]
        sizes = [*contexts, taps_bytes(FULL, tokens, half), taps_bytes(FULL, 2048, half)]
        assert f"| {tokens:,} | {' | '.join(map(megabytes, sizes))} |" in page
