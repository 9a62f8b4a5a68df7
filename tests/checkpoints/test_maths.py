"""Tiny checkpoints through the reader and the network against the slow reference, cached rounds and past the window."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_hf.checkpoints.load import load_drafter
from tests.checkpoints.reference.block import Rules, slow_block
from tests.checkpoints.tiny import BLOCK, LAYERS, TAPS, WIDTH, tiny_config, tiny_tensors, write_tiny

FULL, SLIDING = "full_attention", "sliding_attention"
SHAPE = {"heads": 2, "kv_heads": 1, "head_dim": 4, "theta": 1e7}
ALL_FULL = {"windows": [None] * LAYERS, "causal": [False] * LAYERS}
W5 = {"sliding_window": 5, "use_sliding_window": True}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # config changes, what they mean
    "full": ({}, ALL_FULL),
    "full, older spelling": ({"rope_parameters": None, "rope_theta": 10000000, "rope_scaling": None}, ALL_FULL),
    "sliding layers causal by rule": (
        {"layer_types": [SLIDING, FULL], **W5},
        {"windows": [5, None], "causal": [True, False]},
    ),
    "is_causal false wins over sliding": (
        {"layer_types": [SLIDING, SLIDING], "is_causal": False, **W5},
        {"windows": [5, 5], "causal": [False, False]},
    ),
    "is_causal true for full layers": ({"is_causal": True}, {"windows": [None, None], "causal": [True, True]}),
    "window shorter than the block": (
        {"layer_types": [SLIDING, SLIDING], "sliding_window": 2, "use_sliding_window": True, "is_causal": False},
        {"windows": [2, 2], "causal": [False, False]},
    ),
    "window of one": (
        {"layer_types": [SLIDING, FULL], "sliding_window": 1, "use_sliding_window": True},
        {"windows": [1, None], "causal": [True, False]},
    ),
    "biases": ({"attention_bias": True}, ALL_FULL),
    "one key head per query head": ({"num_key_value_heads": 2}, {**ALL_FULL, "kv_heads": 2}),
    "grouped heads": (
        {"num_attention_heads": 4, "num_key_value_heads": 2},
        {**ALL_FULL, "heads": 4, "kv_heads": 2},
    ),
    "head_dim that width and heads do not give": ({"head_dim": 8}, {**ALL_FULL, "head_dim": 8}),
    "another eps": ({"rms_norm_eps": 1e-2}, {**ALL_FULL, "eps": 1e-2}),
    "YaRN": (
        {
            "rope_parameters": {
                "rope_theta": 10000.0,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "head_dim": 8,
        },
        {**ALL_FULL, "head_dim": 8, "theta": 1e4, "yarn": (4.0, 64)},
    ),
    "YaRN, older spelling, length from the config": (
        {
            "rope_parameters": None,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "yarn", "factor": 4.0},
            "max_position_embeddings": 64,
            "head_dim": 8,
        },
        {**ALL_FULL, "head_dim": 8, "theta": 1e4, "yarn": (4.0, 64)},
    ),
    "partial rotary leaked from the target": (
        {"rope_parameters": {"rope_theta": 1e7, "rope_type": "default", "partial_rotary_factor": 0.25}, "head_dim": 8},
        {**ALL_FULL, "head_dim": 8},
    ),
}


def check(folder: Path, config: dict[str, Any], meaning: dict[str, Any], rounds: list[int], seed: int = 0) -> None:
    """Run rounds that add ``rounds[i]`` context rows each; every block must equal the reference, cached or not."""
    tensors = tiny_tensors(config, seed)
    write_tiny(folder, config, tensors)
    rules = Rules(**{**SHAPE, **meaning})
    drafter = load_drafter(folder)
    generator = torch.Generator().manual_seed(seed + 1)
    context, length = drafter.new_context(), 0
    taps = torch.randn(1, sum(rounds), TAPS * WIDTH, generator=generator)
    for rows in rounds:
        noise = torch.randn(1, BLOCK, WIDTH, generator=generator)
        new = taps[:, length : length + rows]
        positions = torch.arange(length, length + rows + BLOCK)[None]
        with torch.no_grad():
            cached = drafter(noise, new, None, positions, context).last_hidden_state
            length += rows
            whole = torch.arange(length + BLOCK)[None]
            at_once = drafter(noise, taps[:, :length], None, whole).last_hidden_state
        slow = torch.tensor(slow_block(tensors, rules, taps[0, :length], list(range(length)), noise[0], length))
        torch.testing.assert_close(cached[0], slow, rtol=0, atol=3e-5)
        torch.testing.assert_close(at_once[0], slow, rtol=0, atol=3e-5)


@pytest.mark.parametrize("case", CASES)
def test_drafter_equals_the_slow_reference(case: str, tmp_path: Path) -> None:
    changes, meaning = CASES[case]
    check(tmp_path, tiny_config(**changes), meaning, rounds=[7, 1, 3])


@pytest.mark.parametrize("case", ["full", "sliding layers causal by rule", "window shorter than the block"])
def test_eager_attention_equals_sdpa(case: str, tmp_path: Path) -> None:
    write_tiny(tmp_path, tiny_config(**CASES[case][0]))
    noise, taps = torch.randn(1, BLOCK, WIDTH), torch.randn(1, 9, TAPS * WIDTH)
    positions = torch.arange(9 + BLOCK)[None]
    with torch.no_grad():
        one, two = (
            load_drafter(tmp_path, attn_implementation=name)(noise, taps, None, positions).last_hidden_state
            for name in ("eager", "sdpa")
        )
    torch.testing.assert_close(one, two, rtol=0, atol=1e-5)


def test_the_reference_tells_the_cases_apart(tmp_path: Path) -> None:
    """A check that cannot fail shows nothing: each wrong reading must differ by far more than the tolerance."""
    config = tiny_config(layer_types=[SLIDING, SLIDING], **W5)
    right = {"windows": [5, 5], "causal": [True, True]}
    for wrong in ({"causal": [False, False]}, {"windows": [6, 6]}, {"windows": [4, 4]}, {"theta": 1e6}):
        with pytest.raises(AssertionError):
            check(tmp_path, config, {**right, **wrong}, rounds=[9])


@settings(max_examples=25, deadline=None)
@given(
    windows=st.lists(st.sampled_from([True, False]), min_size=LAYERS, max_size=LAYERS),
    window=st.integers(1, 9),
    is_causal=st.sampled_from([None, True, False]),
    bias=st.booleans(),
    heads=st.sampled_from([(2, 1), (2, 2), (4, 2)]),
    rounds=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_any_v1_drafter_equals_the_slow_reference(
    windows: list[bool],
    window: int,
    is_causal: bool | None,
    bias: bool,
    heads: tuple[int, int],
    rounds: list[int],
    seed: int,
) -> None:
    config = tiny_config(
        layer_types=[SLIDING if sliding else FULL for sliding in windows],
        sliding_window=window if any(windows) else None,
        use_sliding_window=any(windows),
        is_causal=is_causal,
        attention_bias=bias,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
    )
    meaning = {
        "windows": [window if sliding else None for sliding in windows],
        "causal": windows if is_causal is None else [is_causal] * LAYERS,
        "heads": heads[0],
        "kv_heads": heads[1],
    }
    with TemporaryDirectory() as folder:
        check(Path(folder), config, meaning, rounds, seed)
