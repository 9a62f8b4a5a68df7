"""``inspect`` says where every value is from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.checkpoints.origins import FIELDS
from tests.checkpoints.test_layouts import HANDS, made
from tests.checkpoints.tiny import tiny_config, tiny_tensors, write_tiny

SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 16, "use_sliding_window": True}


def origins(folder: Path) -> dict[str, str]:
    return dict(load_drafter(folder).provenance.origins)


def test_nested_and_top_level_keys_are_told_apart(tmp_path) -> None:
    nested = {"block_size": 4, "target_layer_ids": [1, 3]}
    write_tiny(tmp_path, tiny_config(dflash_config=nested, mask_token_id=37, block_size=16, **SLIDING))
    found = origins(tmp_path)
    assert found["block_size"] == "dflash_config.block_size" and found["mask_token_id"] == "mask_token_id"
    assert found["layer_windows"] == "sliding_window, layer_types"
    assert found["layer_causal"].startswith("z-lab's rule")
    assert found["rope_parameters"] == "rope_parameters"
    assert found["target_name"] == "not in the files" and found["num_draft_tokens"] == "derived"


def test_a_default_is_its_writers(tmp_path) -> None:
    write_tiny(tmp_path, tiny_config(rms_norm_eps=None, num_target_layers=None))
    found = origins(tmp_path)
    assert found["rms_norm_eps"] == "default of z-lab's writer"
    assert found["num_target_layers"] == "not in the files"


def test_what_tensors_and_the_dialect_decide_is_named(tmp_path) -> None:
    drafter = made(embedding="own", draft_vocab_size=9, reduced_vocabulary=True, last_tap="raw")
    from dflash_hf.checkpoints.convert import convert

    convert(drafter, tmp_path, to="speculators")
    found = origins(tmp_path)
    assert found["target_layer_ids"] == "aux_hidden_state_layer_ids"
    assert found["hidden_size"] == "transformer_layer_config.hidden_size"
    assert found["embedding"] == found["reduced_vocabulary"] == "tensors"
    assert found["last_tap"] == "what speculators-dflash means"


@pytest.mark.parametrize("hand", HANDS)
def test_every_field_has_an_origin_and_every_tensor_a_name(hand: str, tmp_path) -> None:
    made(**HANDS[hand]).save_pretrained(tmp_path)
    drafter = load_drafter(tmp_path)
    assert drafter.provenance.origins.keys() == set(FIELDS)
    assert drafter.provenance.names.keys() == drafter.state_dict().keys()
    assert drafter.provenance.evidence


def test_the_table_shows_files_and_memory_names(run, tmp_path) -> None:
    config = tiny_config()
    write_tiny(tmp_path, config, {f"model.{name}": tensor for name, tensor in tiny_tensors(config).items()})
    text = run("inspect", tmp_path, "--tensors").stdout
    assert "by tensor fc.weight" in text and "per 1000 tokens" in text
    row = next(line for line in text.splitlines() if "model.fc.weight" in line)
    assert "fusion.fc.weight" in row and "[12, 24] float32" in row
    body = json.loads(run("inspect", tmp_path, "--json").stdout)
    row = 2 * 8 * 4
    assert body["memory"] == {
        "weights_bytes": 4 * body["parameters"],
        "context_bytes_per_1k_tokens": 1000 * row,
        "context_bytes_at_32k_tokens": 32768 * row,
        "taps_bytes_per_1k_tokens": 1000 * 24 * 4,
    }
    assert body["files"]["origins"]["block_size"] == "dflash_config.block_size"
    assert body["config"].keys() == set(FIELDS)


GOLDEN = os.environ.get("DFLASH_GOLDEN")


@pytest.mark.skipif(not GOLDEN, reason="DFLASH_GOLDEN is unset; .ci/run sets it")
def test_the_evidence_names_what_makes_a_dialect() -> None:
    folder = Path(GOLDEN or "")
    assert load_drafter(folder / "jetspec_causal").provenance.evidence == ("dflash_config.causal_head=True",)
    assert load_drafter(folder / "angelslim_dflare").provenance.evidence == ("tensor layer_fusion_weights",)
