"""Saving: the round trip is exact, what is written is z-lab's layout, a killed save is no checkpoint."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from dflash_hf import DFlashConfig, DFlashDrafter
from dflash_hf.checkpoints import write
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.checkpoints.save import save_drafter
from dflash_hf.errors import CheckpointError
from tests.checkpoints.tiny import tiny_config, tiny_tensors, write_tiny

SHAPE: dict[str, Any] = {
    "hidden_size": 12,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "target_layer_ids": [1, 3],
    "num_target_layers": 6,
    "block_size": 4,
    "mask_token_id": 37,
}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 1e7},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64},
]


def described(drafter: DFlashDrafter) -> dict[str, Any]:
    passing = {"_name_or_path", "transformers_version", "architectures"}
    return {key: value for key, value in drafter.config.to_dict().items() if key not in passing}


def assert_same(one: DFlashDrafter, two: DFlashDrafter) -> None:
    assert described(one) == described(two)
    left, right = one.state_dict(), two.state_dict()
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor.view(torch.uint8), right[name].view(torch.uint8)), name


@settings(max_examples=20, deadline=None)
@given(
    windows=st.lists(st.sampled_from([None, 6]), min_size=2, max_size=2),
    causal=st.sampled_from(["all", "none", "rule"]),
    rope=st.sampled_from(ROPES),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    vocab_size=st.sampled_from([None, 40]),
    target_name=st.sampled_from([None, "owner/target", "Ключ/目标"]),
    scales=st.sampled_from(
        [
            {},
            {"output_multiplier": 1.0},
            {"output_multiplier": 0.19611613513818404, "final_logit_softcapping": 20.0},
        ]
    ),
    embedding=st.sampled_from(
        [{}, {"embedding": "target_rows"}, {"embedding": "target_module"}, {"embedding_scale": 3.5}]
    ),
    inherits=st.booleans(),
    eps=st.sampled_from([1e-6, 1e-5]),
)
def test_round_trip_is_exact(
    windows: list[int | None],
    causal: str,
    rope: dict[str, Any],
    bias: bool,
    dtype: torch.dtype,
    vocab_size: int | None,
    target_name: str | None,
    scales: dict[str, Any],
    embedding: dict[str, Any],
    inherits: bool,
    eps: float,
) -> None:
    flags = {"all": [True] * 2, "none": [False] * 2, "rule": [window is not None for window in windows]}[causal]
    config = DFlashConfig(
        **SHAPE,
        **scales,
        **embedding,
        inherits_logit_scale=inherits,
        layer_windows=windows,
        layer_causal=flags,
        rope_parameters=rope,
        attention_bias=bias,
        vocab_size=vocab_size,
        target_name=target_name,
        rms_norm_eps=eps,
    )
    drafter = DFlashDrafter(config).to(dtype)
    drafter.config.dtype = dtype
    with TemporaryDirectory() as folder:
        drafter.save_pretrained(folder)
        again = DFlashDrafter.from_pretrained(folder)
        assert again.provenance.dialect == "zlab"
        assert not [entry for entry in again.provenance.defaults if not entry.startswith("is_causal")]
        assert_same(drafter, again)
        again.save_pretrained(folder)  # over itself, while its weights are mapped from there
        assert_same(drafter, load_drafter(folder))


@pytest.mark.parametrize("source", ["zlab", "zlab sliding", "modelopt", "muse"])
def test_a_published_checkpoint_survives_the_round_trip(source: str, tmp_path: Path) -> None:
    config = tiny_config()
    tensors = tiny_tensors(config)
    if source == "zlab sliding":
        config |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5} | {
            "use_sliding_window": True
        }
    if source == "modelopt":
        config["dflash_config"] |= {"use_swa": True, "swa_window_size": 9, "causal": False}
    if source == "muse":
        nested = config.pop("dflash_config")
        config |= nested | {"model_type": "muse_glimmer_assistant", "layer_types": ["sliding_attention"] * 2}
        config |= {"sliding_window": 5, "use_sliding_window": None}
        renames = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
        tensors = {renames.get(name, name): tensor for name, tensor in tensors.items()}
    write_tiny(tmp_path / "theirs", config, tensors)
    drafter = load_drafter(tmp_path / "theirs")
    save_drafter(drafter, tmp_path / "ours")
    assert_same(drafter, load_drafter(tmp_path / "ours"))


def saved(folder: Path, **changes: Any) -> dict[str, Any]:
    save_drafter(DFlashDrafter(DFlashConfig(**SHAPE | changes)), folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def test_config_is_z_labs_layout_in_both_spellings(tmp_path: Path) -> None:
    config = saved(tmp_path, layer_windows=[6, None], layer_causal=[True, False], rope_parameters=ROPES[2])
    assert config["architectures"] == ["DFlashDraftModel"] and config["model_type"] == "qwen3"
    assert config["dflash_config"] == {"block_size": 4, "mask_token_id": 37, "target_layer_ids": [1, 3]}
    assert config["block_size"] == 4
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert (config["sliding_window"], config["use_sliding_window"]) == (6, True)
    assert config["rope_parameters"] == ROPES[2]
    assert config["rope_theta"] == 1e6
    assert config["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert "is_causal" not in config  # z-lab's rule says the same, and no single flag could
    assert "auto_map" not in config


@pytest.mark.parametrize(
    ("windows", "causal", "flag"),
    [([6, 6], [True, True], True), ([6, 6], [False, False], False), ([None, None], [True, True], True)],
)
def test_is_causal_is_written_where_layers_need_it(windows: Any, causal: Any, flag: bool, tmp_path: Path) -> None:
    assert saved(tmp_path, layer_windows=windows, layer_causal=causal)["is_causal"] is flag


def test_transformers_reads_the_config_as_qwen3(tmp_path: Path) -> None:
    saved(tmp_path, layer_windows=[6, None], layer_causal=[True, False], rope_parameters=ROPES[2], vocab_size=40)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.model_type == "qwen3" and config.sliding_window == 6 and config.vocab_size == 40
    assert config.layer_types == ["sliding_attention", "full_attention"]
    assert config.rope_parameters["rope_theta"] == 1e6 and config.rope_parameters["factor"] == 4.0
    assert config.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_windows": [6, 7]}, r"windows of several lengths \(6, 7\)"),
        ({"layer_causal": [True, False]}, "in-block causality layer by layer"),
        ({"target_hidden_size": 20}, "taps of width 20 for a drafter of width 12"),
    ],
)
def test_what_the_layout_cannot_say_is_refused_before_writing(changes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        saved(tmp_path / "new", **changes)
    assert not (tmp_path / "new").exists()


def test_ids_filled_in_at_pairing_are_not_saved(tmp_path: Path) -> None:
    """``check_pair`` puts the target's vocabulary into the config in memory; the file keeps its own."""
    write_tiny(tmp_path / "theirs")
    drafter = load_drafter(tmp_path / "theirs")
    drafter.config.vocab_size, drafter.config.eos_token_id = 99, 1
    save_drafter(drafter, tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["vocab_size"] == 40 and "eos_token_id" not in config


def test_card_says_what_is_needed(tmp_path: Path) -> None:
    saved(tmp_path, target_name="owner/target")
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "dflash_hf" and card.data.pipeline_tag == "text-generation"
    assert card.data.base_model == "owner/target" and "speculative-decoding" in card.data.tags
    assert "dflash_hf.attach(" in card.text and "assistant=drafter" in card.text
    snippet = card.text.partition("```python\n")[2].partition("```")[0]
    compile(snippet, "README.md", "exec")


@pytest.mark.parametrize("start", ["---\nlicense: mit\ntags:\n- mine\n---\n", ""])
def test_an_existing_card_keeps_its_text(start: str, tmp_path: Path) -> None:
    body = "\n# Mine\n\nMeasured: 3.1 tokens per round.  \n\n---\n\nLast line without a break"
    (tmp_path / "README.md").write_text(start + body, newline="")
    saved(tmp_path, target_name="owner/target")
    saved(tmp_path, target_name="owner/target")
    text = (tmp_path / "README.md").read_text()
    assert text.endswith(body if start else body.lstrip("\n"))
    assert "Proposes" not in text
    card = ModelCard(text)
    assert card.data.base_model == "owner/target"
    assert card.data.get("license") == ("mit" if start else None)
    assert card.data.tags == [*(["mine"] if start else []), "dflash", "speculative-decoding", "draft-model"]


def test_old_shards_do_not_survive_a_save(tmp_path: Path) -> None:
    config, tensors = write_tiny(tmp_path, tensors=tiny_tensors(tiny_config(), seed=1))
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "notes.txt").write_text("mine")
    drafter = DFlashDrafter(DFlashConfig(**SHAPE, dtype=torch.float32))
    save_drafter(drafter, tmp_path)
    assert_same(drafter, load_drafter(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "notes.txt",
    ]


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="kills a forked copy of this process; runs where there is fork (Linux, macOS)"
)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_killed_save_is_no_checkpoint(step: int, tmp_path: Path) -> None:
    """Killed before each file takes its place, over an older checkpoint: never a mixture that loads."""
    write_tiny(tmp_path)
    drafter = DFlashDrafter(DFlashConfig(**SHAPE))
    moves, real = [], os.replace

    def replace(*names: Any) -> None:
        moves.append(names)
        if len(moves) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*names)

    child = os.fork()
    if child == 0:
        os.replace = replace
        save_drafter(drafter, tmp_path)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_drafter(tmp_path)


def test_a_failed_save_leaves_no_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tensors = write_tiny(tmp_path)

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(write, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_drafter(DFlashDrafter(DFlashConfig(**SHAPE)), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    load_drafter(tmp_path)  # the older checkpoint is untouched


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(CheckpointError, match="is a file; pass a folder"):
        save_drafter(DFlashDrafter(DFlashConfig(**SHAPE)), tmp_path / "taken")
