"""Loading: files in every arrangement, nothing missing and nothing left over, arguments, provenance."""

from __future__ import annotations

import json
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_hf import DFlashDrafter
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.checkpoints.reading import file_name
from dflash_hf.errors import (
    CheckpointError,
    IncompatiblePairError,
    OptionsError,
    UnsupportedCheckpointError,
)
from tests.checkpoints.tiny import MASK, VOCAB, WIDTH, tiny_config, tiny_tensors, write_tiny


def same(drafter: DFlashDrafter, tensors: dict[str, torch.Tensor]) -> bool:
    state = {file_name(name): tensor for name, tensor in drafter.state_dict().items()}
    return state.keys() == tensors.keys() and all(torch.equal(state[name], tensors[name]) for name in tensors)


def shard(folder: Path, names: tuple[str, str], tensors: dict[str, torch.Tensor], index: str | None) -> None:
    (folder / "model.safetensors").unlink()
    parts = [dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2])]
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name)
    if index is not None:
        where = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def target(**changes: Any) -> Qwen3ForCausalLM:
    options = {"hidden_size": WIDTH, "num_hidden_layers": 6, "vocab_size": VOCAB} | changes
    config = Qwen3Config(
        intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=4, eos_token_id=1, **options
    )
    return Qwen3ForCausalLM(config)


def test_every_tensor_arrives_unchanged(tmp_path: Path) -> None:
    _, tensors = write_tiny(tmp_path)
    drafter = DFlashDrafter.from_pretrained(tmp_path)
    assert same(drafter, tensors)
    assert not drafter.training
    assert all(not parameter.is_meta for parameter in [*drafter.parameters(), *drafter.buffers()])
    assert drafter.name_or_path == drafter.config._name_or_path == str(tmp_path)


@pytest.mark.parametrize(
    ("names", "index"),
    [
        (("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), "model.safetensors.index.json"),
        (("draft-a.safetensors", "draft-b.safetensors"), "draft.safetensors.index.json"),
        (("dflash_draft_model-1.safetensors", "dflash_draft_model-2.safetensors"), None),
    ],
)
def test_shards_are_found(names: tuple[str, str], index: str | None, tmp_path: Path) -> None:
    _, tensors = write_tiny(tmp_path)
    shard(tmp_path, names, tensors, index)
    drafter = load_drafter(tmp_path)
    assert same(drafter, tensors)
    assert drafter.provenance.files == ("config.json", *names)


@pytest.mark.parametrize("prefix", ["model.", "draft_model."])
def test_prefixed_tensors_are_read(prefix: str, tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config())
    write_tiny(tmp_path, tensors={f"{prefix}{name}": tensor for name, tensor in tensors.items()})
    assert same(load_drafter(tmp_path), tensors)


def test_surplus_tensors_are_left_alone(tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config())
    beside = ("rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq")
    write_tiny(tmp_path, tensors=tensors | {name: torch.zeros(2) for name in beside})
    assert same(load_drafter(tmp_path), tensors)


@pytest.mark.parametrize("name", ["t2d", "verifier_norm.weight", "verifier_lm_head.weight"])
def test_what_only_speculators_leave_is_read_by_nothing_elsewhere(name: str, tmp_path: Path) -> None:
    write_tiny(tmp_path, tensors=tiny_tensors(tiny_config()) | {name: torch.zeros(2)})
    with pytest.raises(CheckpointError, match=f"read by nothing: {name}"):
        load_drafter(tmp_path)


def test_missing_and_unread_tensors_are_listed(tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config())
    del tensors["layers.1.mlp.up_proj.weight"]
    tensors["layers.0.self_attn.v_norm.weight"] = torch.zeros(4)
    write_tiny(tmp_path, tensors=tensors)
    with pytest.raises(CheckpointError) as caught:
        load_drafter(tmp_path)
    assert "missing in the files: layers.1.mlp.up_proj.weight" in str(caught.value)
    assert "read by nothing: layers.0.self_attn.v_norm.weight" in str(caught.value)


@pytest.mark.parametrize("says", [True, False])
def test_biases_and_config_must_agree(says: bool, tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config(attention_bias=not says))
    write_tiny(tmp_path, tiny_config(attention_bias=says), tensors)
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.k_proj\.bias"):
        load_drafter(tmp_path)


def test_shapes_name_both_sides(tmp_path: Path) -> None:
    write_tiny(tmp_path, tiny_config(intermediate_size=20), tiny_tensors(tiny_config()))
    with pytest.raises(
        CheckpointError, match=r"mlp\.down_proj\.weight is \[12, 16\] in the files, \[12, 20\] by the config"
    ):
        load_drafter(tmp_path)


def test_taps_that_do_not_fit_fc_are_explained(tmp_path: Path) -> None:
    config = tiny_config()
    config["dflash_config"]["target_layer_ids"] = [1, 2, 3]
    write_tiny(tmp_path, config, tiny_tensors(tiny_config()))
    with pytest.raises(CheckpointError, match=r"fc\.weight must take 3 taps \(target_layer_ids \[1, 2, 3\]\)"):
        load_drafter(tmp_path)


def test_depth_of_config_and_files_must_agree(tmp_path: Path) -> None:
    write_tiny(tmp_path, tiny_config(num_hidden_layers=1, layer_types=["full_attention"]), tiny_tensors(tiny_config()))
    with pytest.raises(CheckpointError, match=r"read by nothing: layers\.1\.input_layernorm\.weight"):
        load_drafter(tmp_path)


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    _, tensors = write_tiny(tmp_path)
    shard(tmp_path, ("a.safetensors", "b.safetensors"), tensors, "model.safetensors.index.json")
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names b\.safetensors, which is not there"):
        load_drafter(tmp_path)


def test_an_index_may_not_point_outside(tmp_path: Path) -> None:
    _, tensors = write_tiny(tmp_path / "inside")
    save_file(tensors, tmp_path / "elsewhere.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "../elsewhere.safetensors")}
    (tmp_path / "inside" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="points outside its folder"):
        load_drafter(tmp_path / "inside")


@pytest.mark.parametrize("keep", [0.3, 0.99])
def test_a_cut_file_is_damaged(keep: float, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * keep)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged or cut short"):
        load_drafter(tmp_path)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedCheckpointError, match="only pickles"):
        load_drafter(tmp_path)


def test_code_beside_the_weights_is_not_run(tmp_path: Path) -> None:
    write_tiny(tmp_path, tiny_config(auto_map={"AutoModel": "dflash.DFlashDraftModel"}))
    (tmp_path / "dflash.py").write_text("raise SystemExit('remote code was run')")
    load_drafter(tmp_path)
    with pytest.raises(OptionsError, match="trust_remote_code: code from a repository is never run"):
        load_drafter(tmp_path, trust_remote_code=True)


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_broken_config_is_named(text: str, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_drafter(tmp_path)


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_drafter(tmp_path)
    with pytest.raises(CheckpointError, match="is not a folder"):
        load_drafter(tmp_path / "nowhere")
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file"):
        load_drafter(tmp_path)


def test_subfolder_of_a_folder(tmp_path: Path) -> None:
    _, tensors = write_tiny(tmp_path / "dflash")
    drafter = load_drafter(tmp_path, subfolder="dflash")
    assert same(drafter, tensors) and drafter.provenance.source == f"{tmp_path}/dflash"
    with pytest.raises(OptionsError, match="leads out"):
        load_drafter(tmp_path, subfolder="../other")
    with pytest.raises(OptionsError, match="is a local folder"):
        load_drafter(tmp_path, subfolder="dflash", revision="main")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("auto", torch.bfloat16),
        (None, torch.bfloat16),
        (torch.float32, torch.float32),
        ("float16", torch.float16),
        ("torch.float64", torch.float64),
    ],
)
def test_dtype(dtype: Any, expected: torch.dtype, tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config(), dtype=torch.bfloat16)
    write_tiny(tmp_path, tensors=tensors)
    drafter = load_drafter(tmp_path, dtype=dtype)
    assert {parameter.dtype for parameter in drafter.parameters()} == {expected}
    assert drafter.dtype == drafter.config.dtype == expected
    assert drafter.provenance.stored_dtype == "bfloat16"
    assert drafter.rotary_emb.inv_freq.dtype == torch.float32


def test_mixed_dtypes_become_one_and_are_noted(tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config(), dtype=torch.bfloat16)
    tensors["norm.weight"] = tensors["norm.weight"].float()
    write_tiny(tmp_path, tensors=tensors)
    drafter = load_drafter(tmp_path)
    assert {parameter.dtype for parameter in drafter.parameters()} == {torch.bfloat16}
    assert "weights are stored in BF16, F32; all are loaded in one dtype" in drafter.provenance.notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "no floating-point dtype"),
        ({"dtype": torch.int64}, "no floating-point dtype"),
        ({"dtype": "banana"}, "no floating-point dtype"),
        ({"device_map": "meta"}, "without weights"),
        ({"device_map": "banana"}, "no device of this machine"),
        ({"device_map": {"layers.0": "cpu", "layers.1": "meta"}}, "runs on one device"),
        ({"torch_dtype": "auto"}, "torch_dtype: say dtype="),
        ({"revison": "main"}, "revison: unknown argument"),
        ({"attn_implementation": "banana"}, "attn_implementation='banana' cannot be used here"),
    ],
)
def test_impossible_arguments(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    with pytest.raises(OptionsError, match=message):
        load_drafter(tmp_path, **options)


@pytest.mark.parametrize("device_map", [None, "cpu", torch.device("cpu"), {"": "cpu"}])
def test_device_map_of_one_device(device_map: Any, tmp_path: Path) -> None:
    _, tensors = write_tiny(tmp_path)
    drafter = load_drafter(tmp_path, device_map=device_map)
    assert drafter.device == torch.device("cpu") and same(drafter, tensors)


def test_device_map_auto_asks_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tensors = write_tiny(tmp_path)
    if find_spec("accelerate") is not None:
        drafter = load_drafter(tmp_path, device_map="auto")
        assert same(drafter.cpu(), tensors)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(OptionsError, match="needs accelerate, which is not installed"):
        load_drafter(tmp_path, device_map="auto")


def test_attn_implementation_is_taken(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    assert load_drafter(tmp_path, attn_implementation="eager").config._attn_implementation == "eager"


def test_unknown_nested_keys_are_said(tmp_path: Path) -> None:
    config = tiny_config()
    config["dflash_config"]["new_trick"] = 3
    write_tiny(tmp_path, config)
    with pytest.warns(UserWarning, match="new_trick"):
        drafter = load_drafter(tmp_path)
    assert any("new_trick" in note for note in drafter.provenance.notes)


def test_provenance_tells_source_dialect_and_defaults(tmp_path: Path) -> None:
    config = tiny_config()
    del config["dflash_config"]["block_size"]
    write_tiny(tmp_path, config)
    drafter = load_drafter(tmp_path)
    told = drafter.provenance
    assert (told.source, told.revision, told.dialect) == (str(tmp_path), None, "zlab")
    assert told.defaults == ("block_size=16: default of z-lab's writer",)
    assert drafter.config.block_size == 16


def test_base_model_of_the_card_becomes_target_name(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    assert load_drafter(tmp_path).config.target_name is None
    for text in ("base_model: owner/target", "base_model:\n- owner/target"):
        (tmp_path / "README.md").write_text(f"---\n{text}\n---\nText.\n")
        assert load_drafter(tmp_path).config.target_name == "owner/target"
    (tmp_path / "README.md").write_text("---\n: : bad\n- [\n---\n")
    with pytest.raises(CheckpointError, match=r"README\.md: the metadata block"):
        load_drafter(tmp_path)


def test_target_runs_check_pair_and_nothing_else(tmp_path: Path) -> None:
    _, tensors = write_tiny(tmp_path)
    fits = target()
    before = {name: value for name, value in vars(fits).items() if not name.startswith("_")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafter = load_drafter(tmp_path, target=fits)
    assert same(drafter, tensors)
    assert before == {name: value for name, value in vars(fits).items() if not name.startswith("_")}
    for changes, message in (
        ({"hidden_size": 16}, "16"),
        ({"num_hidden_layers": 3}, "3 layers"),
        ({"vocab_size": MASK}, f"mask token is id {MASK}"),  # the mask must be a row of the target's embedding
    ):
        with pytest.raises(IncompatiblePairError, match=message):
            load_drafter(tmp_path, target=target(**changes))


def test_weights_are_mapped_not_initialised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither torch's nor transformers' initialisers draw a number."""
    write_tiny(tmp_path)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a weight was initialised that the file then replaces")

    state = torch.get_rng_state()
    monkeypatch.setattr(torch, "randn", never)
    load_drafter(tmp_path)
    assert torch.equal(state, torch.get_rng_state())
