"""Described dialects: what contradicts itself or is described by nobody is refused, and says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_hf.checkpoints.files import survey
from dflash_hf.checkpoints.layouts import zlab_config
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError
from tests.checkpoints.described_files import FULL, SLIDING, gated, gemma4, laguna, lfm, mimo, own_parts
from tests.checkpoints.tiny import MASK, VOCAB, WIDTH, tiny_config, tiny_tensors, write_tiny

ROPES = {FULL: {"rope_theta": 1e4, "rope_type": "default"}, SLIDING: {"rope_theta": 2e5, "rope_type": "default"}}

CONFIGS: dict[str, tuple[Any, dict[str, Any], str]] = {  # files, changes of config, what is said
    "Laguna without layer_types": (laguna(), {"layer_types": None}, "says which of its layers are sliding"),
    "Laguna, positions that differ": (
        laguna(), {"layer_types": [FULL, SLIDING], "rope_parameters": ROPES}, "different rotary positions"
    ),
    "Laguna, gates the files lack": (laguna("disabled"), {"gating": "per-head"}, "g_proj has no rows"),
    "Laguna, gates of another kind": (laguna(), {"gating": "per-element"}, "g_proj has 2 rows"),
    "Laguna, an unknown gate": (laguna(), {"gating": "per-layer"}, "gating is 'per-layer'"),
    "Laguna, too few windows": (laguna(), {"sliding_windows": [3]}, "one window a layer"),
    "Laguna, a sliding layer without a window": (laguna(), {"sliding_windows": [3, 0]}, "has 0 for them"),
    "Laguna, other heads": (laguna(), {"num_key_value_heads": 2}, "qkv_proj.weight has 32 rows"),
    "Laguna, ids that count otherwise": (laguna(), {"eagle_aux_hidden_state_layer_ids": [1, 5]}, "counts from 1"),
    "Laguna, an odd part of a head": (
        laguna(), {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.2}}, "an even number of dimensions"
    ),
    "Laguna, a reduced head it does not ship": (laguna(), {"draft_vocab_size": 20}, "no lm_head.weight"),
    "Laguna, no rotary base": (laguna(), {"rope_parameters": None}, "rope_theta"),
    "MiMo, values of another width": (mimo(), {"v_head_dim": 4}, "v_head_dim 4"),
    "MiMo, sinks denied": (mimo(attention_sink_bias=False), {}, "attention_sink_bias is false, but the files have"),
    "MiMo, no window": (mimo(swa_window_size=None), {"sliding_window": None}, "are missing"),
    "MiMo, a share above one": (mimo(), {"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
    "sinks and shifted slots": (mimo(sample_from_anchor=True), {}, "contradict each other"),
    "sinks, two orders of pairs": (
        mimo(), {"rope_is_neox_style": False, "is_neox_style": True}, "contradicts itself"
    ),
    "sinks, pairs side by side": (mimo(), {"rope_is_neox_style": False}, "interleaved pairs"),
    "z-lab, pairs side by side": (
        (tiny_config(), tiny_tensors(tiny_config()), None), {"rope_is_neox_style": False}, "interleaved pairs"
    ),
    "gated, taps of another width": (gated(), {"target_hidden_size": 24}, "as wide as the drafter"),
    "own head, another size stated": (own_parts(head=11), {"draft_vocab_size": 12}, "has 11 rows"),
    "own embedding, another vocabulary": (own_parts(head=None), {"vocab_size": 39}, "has 40 rows"),
    "Gemma 4 with experts": (gemma4(), {"enable_moe_block": True}, "experts"),
    "Gemma 4 with inputs per layer": (gemma4(), {"hidden_size_per_layer_input": 4}, "per-layer inputs"),
    "Gemma 4, sliding layers": (gemma4(), {"layer_types": [FULL, SLIDING]}, "DeepSpec builds full layers"),
    "Gemma 4, no entry for full layers": (gemma4(), {"rope_parameters": {"rope_theta": 1e4}}, "under full_attention"),
    "Gemma 4, heads not said": (gemma4(), {"global_head_dim": None}, "global_head_dim"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_configs_are_refused(case: str, tmp_path: Path) -> None:
    (config, tensors, _), changes, says = CONFIGS[case]
    write_tiny(tmp_path, {k: v for k, v in (config | changes).items() if v is not None}, tensors)
    with pytest.raises(CheckpointError) as caught:
        load_drafter(tmp_path)
    assert says in str(caught.value)


TENSORS: dict[str, tuple[Any, list[str], str]] = {  # files, tensors taken away, what is said
    "Laguna, a tap's norm": (laguna(), ["aux_hidden_norms.1.weight"], "fusion.tap_norms.1.weight"),
    "Laguna, a layer's gate": (laguna(), ["layers.1.self_attn.g_proj.weight"], "layers.1.self_attn.gate_proj.weight"),
    "MiMo, a layer's sinks": (mimo(), ["layers.1.self_attn.attention_sink_bias"], "layers.1.self_attn.sinks"),
    "a reduced head without its ids": (own_parts(head=11), ["d2t"], "no d2t to say which"),
    "ids without their head": (own_parts(head=11), ["lm_head.weight"], "no lm_head.weight"),
    "gated, a tap's norm": (gated(), ["candidate_norms.0.weight"], "fusion.tap_norms.0.weight"),
    "Gemma 4, its embedding": (gemma4(), ["embed_tokens.weight"], "no embed_tokens.weight"),
    "Gemma 4, a layer's factor": (gemma4(), ["layers.1.layer_scalar"], "layers.1.layer_scalar"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_missing_tensors_are_named(case: str, tmp_path: Path) -> None:
    (config, tensors, _), gone, says = TENSORS[case]
    write_tiny(tmp_path, config, {name: tensor for name, tensor in tensors.items() if name not in gone})
    with pytest.raises(CheckpointError) as caught:
        load_drafter(tmp_path)
    assert says in str(caught.value)


def test_offsets_beyond_the_vocabulary(tmp_path: Path) -> None:
    config, tensors, _ = own_parts(head=11)
    write_tiny(tmp_path, config, tensors | {"d2t": tensors["d2t"] + VOCAB})
    with pytest.raises(CheckpointError, match="d2t points at ids"):
        load_drafter(tmp_path)


def test_lfm_default_is_shown(tmp_path: Path) -> None:
    config, tensors, _ = lfm(rope_is_neox_style=None, architectures=["Lfm2DSparkModel"])
    write_tiny(tmp_path, config, tensors)
    assert (
        "rope_is_neox_style=False: mlx-vlm's rule for LFM architectures" in load_drafter(tmp_path).provenance.defaults
    )


ROW = torch.ones(WIDTH)


class _Foreign:
    """An object that torch's restricted loader does not know."""


MASKS: dict[str, tuple[Any, str]] = {  # what is saved, what is said
    "a bare tensor": (ROW, "found Tensor"),
    "one key": ({"embedding": ROW}, "found ['embedding']"),
    "a key more": (
        {"embedding": ROW, "mask_token_id": MASK, "scale": 1},
        "found ['embedding', 'mask_token_id', 'scale']",
    ),
    "another id": ({"embedding": ROW, "mask_token_id": MASK - 1}, f"config.json has mask_token_id {MASK}"),
    "an id below zero": ({"embedding": ROW, "mask_token_id": -1}, "mask_token_id is -1"),
    "an id that is a flag": ({"embedding": ROW, "mask_token_id": True}, "mask_token_id is True"),
    "two rows": ({"embedding": torch.ones(2, WIDTH), "mask_token_id": MASK}, "its embedding is [2, 12]"),
    "integers": ({"embedding": ROW.long(), "mask_token_id": MASK}, "its embedding is [12]"),
    "a list": ({"embedding": [1.0], "mask_token_id": MASK}, "its embedding is list"),
    "another width": ({"embedding": torch.ones(WIDTH + 1), "mask_token_id": MASK}, "mask_embedding is [13]"),
    "an object": ({"embedding": ROW, "mask_token_id": _Foreign()}, "cannot be read as that"),
}


@pytest.mark.parametrize("case", MASKS)
def test_mask_files_are_refused(case: str, tmp_path: Path) -> None:
    held, says = MASKS[case]
    config, tensors, _ = mimo()
    write_tiny(tmp_path, config, tensors)
    torch.save(held, tmp_path / "mask_embedding.pt")
    with pytest.raises(CheckpointError) as caught:
        load_drafter(tmp_path)
    assert says in str(caught.value)
    assert "mask_embedding" in str(caught.value)


def test_a_damaged_or_huge_mask_file(tmp_path: Path) -> None:
    write_tiny(tmp_path, *mimo()[:2])
    (tmp_path / "mask_embedding.pt").write_bytes(b"no pickle")
    with pytest.raises(CheckpointError, match=r"mask_embedding\.pt must hold"):
        survey(tmp_path)
    with (tmp_path / "mask_embedding.pt").open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(CheckpointError, match="bytes"):
        survey(tmp_path)


def test_the_mask_file_gives_the_id(tmp_path: Path) -> None:
    config, tensors, _ = mimo()
    del config["dflash_config"]["mask_token_id"]
    write_tiny(tmp_path, config, tensors)
    with pytest.raises(CheckpointError, match="no mask_token_id"):
        load_drafter(tmp_path)
    torch.save({"embedding": ROW[None], "mask_token_id": torch.tensor(MASK)}, tmp_path / "mask_embedding.pt")
    assert load_drafter(tmp_path).config.mask_token_id == MASK


def test_other_pickles_are_never_opened(tmp_path: Path) -> None:
    write_tiny(tmp_path, *mimo()[:2])
    (tmp_path / "model.safetensors").unlink()
    torch.save({"embedding": ROW, "mask_token_id": MASK}, tmp_path / "mask_embedding.pt")
    with pytest.raises(UnsupportedCheckpointError, match=r"only pickles \(mask_embedding\.pt\)"):
        load_drafter(tmp_path)


def test_shards_of_another_name(tmp_path: Path) -> None:
    write_tiny(tmp_path, *mimo()[:2])
    (tmp_path / "model.safetensors").rename(tmp_path / "dflash_draft_model-00001-of-00001.safetensors")
    assert load_drafter(tmp_path).provenance.dialect == "attention-sinks"


@pytest.mark.parametrize("files", [laguna(), mimo(), lfm(), gated(), own_parts(head=11), gemma4()])
def test_what_z_labs_layout_cannot_say_is_not_written(files: Any, tmp_path: Path) -> None:
    write_tiny(tmp_path / "drafter", *files[:2])
    with pytest.raises(CheckpointError, match="cannot express this drafter"):
        load_drafter(tmp_path / "drafter").save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_part_of_each_head_is_not_written() -> None:
    config = DFlashConfig(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5})
    with pytest.raises(CheckpointError, match="rotary positions on a part of each head"):
        zlab_config(config, torch.float32)


def test_a_part_of_each_head_is_a_leak_elsewhere(tmp_path: Path) -> None:
    """The same key without MiMo's marks came over from a target's config."""
    config = tiny_config(partial_rotary_factor=0.5)
    write_tiny(tmp_path, config, tiny_tensors(config))
    drafter = load_drafter(tmp_path)
    assert "partial_rotary_factor" not in drafter.config.rope_parameters
    assert any("leaked" in note for note in drafter.provenance.notes)
