"""What a config.json comes to mean: spellings of every revision, defaults that are shown, values that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_hf.checkpoints.dialects import detect, reader
from dflash_hf.checkpoints.files import TensorInfo
from dflash_hf.checkpoints.reading import Reading, file_name
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError
from tests.checkpoints.tiny import BLOCK, MASK, tiny_config, tiny_tensors

SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 16, "use_sliding_window": True}
NESTED = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": [1, 3]}


def read(config: dict[str, Any], names: list[str] | None = None) -> Reading:
    names = list(tiny_tensors(tiny_config())) if names is None else names
    table = {name: TensorInfo((1,), "F32", "model.safetensors") for name in names}
    return reader(detect(config, table))(config, table)


def nested(**changes: Any) -> dict[str, Any]:
    return tiny_config(dflash_config={k: v for k, v in (NESTED | changes).items() if v is not None})


def modelopt(**changes: Any) -> dict[str, Any]:
    template = tiny_config(transformers_version=None, max_window_layers=None, block_size=BLOCK, torch_dtype="bfloat16")
    return template | {"dflash_config": NESTED | changes}


def muse(**changes: Any) -> dict[str, Any]:
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    config = {key: tiny_config()[key] for key in (*keys, "head_dim", "max_position_embeddings")}
    config |= {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": "muse_glimmer_assistant",
        **NESTED,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    } | changes
    return {key: value for key, value in config.items() if value is not None}


MUSE_NAMES = ["encoder.fc.weight", "encoder.output_norm_enc.weight", "norm.weight"]


@pytest.mark.parametrize("key", ["block_size", "mask_token_id", "target_layer_ids"])
def test_drafter_keys_are_found_at_the_top_level_too(key: str) -> None:
    config = nested(**{key: None}) | {key: NESTED[key]}
    reading = read(config)
    assert getattr(reading.config, key) == NESTED[key]
    assert reading.defaults == ()


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("output_multiplier", "output_multiplier", 0.25),
        ("final_logit_softcapping", "final_logit_softcapping", 20.0),
        ("input_embedding_scale", "embedding_scale", 3.5),
        ("num_target_layers", "num_target_layers", 9),
    ],
)
def test_scales_are_found_nested_first(key: str, field: str, value: Any) -> None:
    assert getattr(read(nested(**{key: value}) | {key: 5}).config, field) == value
    assert getattr(read(nested() | {key: value}).config, field) == value


def test_nested_block_size_wins_over_the_top_level() -> None:
    assert read(nested(block_size=8) | {"block_size": 16}).config.block_size == 8


def test_missing_block_size_is_z_labs_16_and_shown() -> None:
    reading = read(nested(block_size=None))
    assert reading.config.block_size == 16
    assert reading.defaults == ("block_size=16: default of z-lab's writer",)


def test_missing_taps_are_spread_and_shown() -> None:
    reading = read(nested(target_layer_ids=None) | {"num_target_layers": 36})
    assert reading.config.target_layer_ids == [1, 33]
    assert reading.defaults == ("target_layer_ids=[1, 33]: z-lab spreads missing ids over the depth",)


def test_taps_come_through_unshifted() -> None:
    config = read(tiny_config()).config
    assert config.target_layer_ids == [1, 3]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_parameters": {"rope_theta": 1e7, "rope_type": "default"}}, {"rope_type": "default", "rope_theta": 1e7}),
        ({"rope_parameters": None, "rope_theta": 1000000}, {"rope_type": "default", "rope_theta": 1e6}),
        (
            {"rope_parameters": None, "rope_theta": 1e7, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "rope_theta": 1e7, "factor": 2.0},
        ),
        (  # SpecForge writes both
            {"rope_parameters": {"rope_theta": 1e7, "rope_type": "default"}, "rope_theta": 1e7, "rope_scaling": None},
            {"rope_type": "default", "rope_theta": 1e7},
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 5e5, "rope_type": "default"}}},
            {"rope_type": "default", "rope_theta": 5e5},
        ),
        (  # leaked from a Qwen3.5 target
            {"rope_parameters": {"rope_theta": 1e7, "rope_type": "default", "mrope_section": [11, 11, 10]}},
            {"rope_type": "default", "rope_theta": 1e7},
        ),
    ],
)
def test_rope_spellings(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read(tiny_config(**changes)).config.rope_parameters == expected


def test_leaked_partial_rotary_is_not_used_and_noted() -> None:
    for changes in ({"partial_rotary_factor": 0.25}, {}):
        rope = {"rope_theta": 1e7, "rope_type": "default"} | ({} if changes else {"partial_rotary_factor": 0.25})
        reading = read(tiny_config(rope_parameters=rope, **changes))
        assert "partial_rotary_factor" not in reading.config.rope_parameters
        assert any("partial_rotary_factor=0.25 not used" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("changes", "windows", "causal"),
    [
        ({}, [None, None], [False, False]),
        ({"layer_types": None}, [None, None], [False, False]),
        (SLIDING, [16, 16], [True, True]),
        ({**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}, [16, None], [True, False]),
        ({**SLIDING, "is_causal": False}, [16, 16], [False, False]),
        ({"is_causal": True}, [None, None], [True, True]),
        ({"layer_types": None, "sliding_window": 8, "use_sliding_window": False}, [None, None], [False, False]),
        (
            {"layer_types": None, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
            [None, 8],
            [False, True],
        ),
        ({"sliding_window": 8, "use_sliding_window": True}, [None, None], [False, False]),
    ],
)
def test_windows_and_causality(changes: dict[str, Any], windows: list[Any], causal: list[bool]) -> None:
    config = read(tiny_config(**changes)).config
    assert (config.layer_windows, config.layer_causal) == (windows, causal)


def test_missing_is_causal_on_sliding_layers_is_shown() -> None:
    assert any(entry.startswith("is_causal=sliding layers") for entry in read(tiny_config(**SLIDING)).defaults)
    assert not read(tiny_config(**SLIDING, is_causal=True)).defaults


@pytest.mark.parametrize(
    "prefix_of", [lambda n: f"model.{n}", lambda n: f"draft_model.{n}", lambda n: n.replace("layers.0.", "midlayer.")]
)
def test_names_with_prefixes_are_canonical(prefix_of: Any) -> None:
    names = list(tiny_tensors(tiny_config()))
    reading = read(tiny_config(), [prefix_of(name) for name in names])
    assert sorted(map(file_name, reading.names.values())) == sorted(names)


def test_two_names_for_one_tensor_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"model\.fc\.weight are both fusion\.fc\.weight"):
        read(tiny_config(), ["fc.weight", "hidden_norm.weight", "model.fc.weight"])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no mask id": (nested(mask_token_id=None), "no mask_token_id"),
    "mask id of -1": (nested(mask_token_id=-1), "mask_token_id is -1"),
    "mask id as text": (nested(mask_token_id="37"), "mask_token_id is '37'"),
    "block of one": (nested(block_size=1), "block_size is 1"),
    "block as a flag": (nested(block_size=True), "block_size is True"),
    "layer before the first": (nested(target_layer_ids=[-1, 3]), "counted from 0"),
    "layer past the last": (nested(target_layer_ids=[1, 6]), "num_target_layers is 6"),
    "taps that are no list": (nested(target_layer_ids="1,3"), "a list of whole numbers"),
    "no taps": (nested(target_layer_ids=[]), "target_layer_ids is empty"),
    "no taps and no depth": (nested(target_layer_ids=None) | {"num_target_layers": None}, "no target_layer_ids"),
    "host indices that disagree": (
        tiny_config(eagle_aux_hidden_state_layer_ids=[1, 3]),
        "does not match target_layer_ids",
    ),
    "no theta": (tiny_config(rope_parameters=None), "neither rope_parameters.rope_theta nor rope_theta"),
    "two thetas": (tiny_config(rope_theta=1e6), "rope_theta says 1000000.0"),
    "two kinds of rope": (tiny_config(rope_scaling={"type": "yarn", "factor": 4.0}), "rope_scaling.rope_type says"),
    "unknown rope": (tiny_config(rope_parameters={"rope_theta": 1e7, "rope_type": "mrope"}), "rope_type is 'mrope'"),
    "rope that moves": (
        tiny_config(rope_parameters={"rope_theta": 1e7, "rope_type": "dynamic", "factor": 2.0}),
        "rope_type is 'dynamic'",
    ),
    "YaRN without a factor": (tiny_config(rope_parameters={"rope_theta": 1e7, "rope_type": "yarn"}), "needs factor"),
    "unknown layer type": (tiny_config(layer_types=["full_attention", "chunked_attention"]), "chunked_attention"),
    "too few layer types": (tiny_config(layer_types=["full_attention"]), "1 layer_types for num_hidden_layers=2"),
    "sliding without a window": (
        tiny_config(**SLIDING | {"sliding_window": None}),
        "sliding_window is missing or null",
    ),
    "sliding switched off": (tiny_config(**SLIDING | {"use_sliding_window": False}), "use_sliding_window is false"),
    "window of zero": (tiny_config(**SLIDING | {"sliding_window": 0}), "sliding_window is 0"),
    "causal as text": (tiny_config(is_causal="false"), "is_causal is 'false'"),
    "causal twice": (nested(causal=True) | {"is_causal": False}, "contradicts itself"),
    "unknown activation": (tiny_config(hidden_act="swish9"), "hidden_act is 'swish9'"),
    "no width": (tiny_config(hidden_size=None), "no hidden_size"),
    "negative cap": (nested(final_logit_softcapping=-1.0), "final_logit_softcapping is -1.0"),
    "unknown projector": (nested(projector_type="weird"), "projector_type is 'weird'"),
    "unknown embedding": (nested(block_embedding="own"), "block_embedding is 'own'"),
    "another model type": (tiny_config(model_type="llama"), "model_type is 'llama'"),
    "heads that do not divide": (tiny_config(num_attention_heads=3, num_key_value_heads=2), "do not divide"),
    "nested keys that are no object": (tiny_config(dflash_config=[1]), "a JSON object is needed"),
    "interleaved rotary": (tiny_config(rope_is_neox_style=False), "interleaved"),
    "positions by layer type": (
        tiny_config(
            layer_types=["full_attention", "sliding_attention"],
            sliding_window=8,
            use_sliding_window=True,
            rope_parameters={"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}},
        ),
        "different positions",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_values_nobody_defined_are_refused(case: str) -> None:
    config, message = BAD[case]
    with pytest.raises(CheckpointError, match=message):
        read(config, ["fc.weight", "hidden_norm.weight"])


def test_missing_body_keys_take_qwen3s_defaults_and_are_shown() -> None:
    reading = read(tiny_config(head_dim=None, num_key_value_heads=None, rms_norm_eps=None, num_attention_heads=32))
    assert (reading.config.head_dim, reading.config.num_key_value_heads) == (128, 32)
    assert "head_dim=128: default of z-lab's writer" in reading.defaults
    assert "rms_norm_eps=1e-06: default of z-lab's writer" in reading.defaults


def test_modelopt_plain_export_is_bidirectional_and_full() -> None:
    reading = read(modelopt())
    assert (reading.config.layer_windows, reading.config.layer_causal) == ([None, None], [False, False])
    assert detect(modelopt(), {"fc.weight": TensorInfo((1,), "F32", "f")}) == "modelopt"


def test_modelopt_window_covers_all_layers_although_layer_types_say_full() -> None:
    config = read(modelopt(use_swa=True, swa_window_size=16, causal=False) | {"sliding_window": 16}).config
    assert (config.layer_windows, config.layer_causal) == ([16, 16], [False, False])
    config = read(modelopt(use_swa=True, causal=True) | {"sliding_window": BLOCK}).config
    assert (config.layer_windows, config.layer_causal) == ([BLOCK, BLOCK], [True, True])
    assert config.window_rule == "query"
    assert read(modelopt(use_swa=True, swa_window_size=BLOCK - 1)).config.window_rule == "context"


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        (modelopt(use_swa=True), CheckpointError, "swa_window_size and sliding_window are missing"),
        (modelopt(use_swa=False) | SLIDING, CheckpointError, "use_swa is not true"),
        (
            modelopt(use_swa=True, swa_window_size=16) | {"layer_types": ["sliding_attention", "full_attention"]},
            UnsupportedCheckpointError,
            "only some layer_types",
        ),
        (modelopt(target_layer_ids=None), CheckpointError, "no target_layer_ids"),
    ],
)
def test_modelopt_variants_are_right_or_refused(config: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        read(config, ["fc.weight", "hidden_norm.weight"])


def test_muse_window_counts_one_more_and_embedding_and_head_are_bare() -> None:
    reading = read(muse(), MUSE_NAMES)
    assert reading.config.layer_windows == [17, None]
    assert reading.config.layer_causal == [False, False]
    assert reading.config.embedding == "target_module" and not reading.config.inherits_logit_scale
    assert reading.names["encoder.output_norm_enc.weight"] == "fusion.norm.weight"
    assert reading.names["encoder.fc.weight"] == "fusion.fc.weight"


def test_muse_missing_keys_take_its_class_defaults_and_are_shown() -> None:
    reading = read(muse(block_size=None, mask_token_id=None, sliding_window=None, rope_parameters=None), MUSE_NAMES)
    config = reading.config
    assert (config.block_size, config.mask_token_id, config.layer_windows[0]) == (16, 201818, 2049)
    assert config.rope_parameters["rope_theta"] == 500000.0
    writer = "default of transformers' MuseGlimmerAssistantConfig"
    for entry in ("block_size=16", "mask_token_id=201818", "sliding_window=2048", "rope_theta=500000.0"):
        assert f"{entry}: {writer}" in reading.defaults


def test_a_confidence_head_may_stand_without_a_markov_head() -> None:
    """speculators and DeepSpec write one where ``markov_rank`` is 0; it then reads the hidden state alone."""
    names = [*tiny_tensors(tiny_config()), "confidence_head.proj.weight", "confidence_head.proj.bias"]
    config = nested(projector_type="dspark", markov_rank=0, enable_confidence_head=True)
    assert read(config, names).config.head == {"kind": "markov", "type": "vanilla", "rank": 0, "confidence": "hidden"}
    config["dflash_config"]["confidence_head_with_markov"] = True
    with pytest.raises(CheckpointError, match="confidence_head_with_markov is true, but markov_rank is 0"):
        read(config, names)
    with pytest.raises(CheckpointError, match=r"markov_rank is 0, but the files have head.markov_w1.weight"):
        read(config, [*names, "markov_head.markov_w1.weight"])
