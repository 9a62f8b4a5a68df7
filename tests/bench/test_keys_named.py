"""What the doctor names is tried: set in the files and loaded, they mean the reading it was named for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from dflash_hf.bench.alternatives import Alternative, alternatives
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import UnsupportedTargetError
from tests.checkpoints.cases import CASES
from tests.checkpoints.described_files import gemma4, laguna, mimo
from tests.checkpoints.slow_target import pair
from tests.checkpoints.tiny import write_tiny

DESCRIBED = {"laguna": laguna, "mimo": mimo, "gemma4": gemma4}
IN_BLOCK, IN_LAYER = "dflash_config.", "transformer_layer_config."
# case -> field -> paths of the keys that have to be among those named; None: no key may be named
NAMED: dict[str, dict[str, tuple[str, ...] | None]] = {
    "zlab": {
        "target_layer_ids": (f"{IN_BLOCK}target_layer_ids",), "layer_causal": ("is_causal",),
        "rope_parameters": ("rope_parameters.rope_theta",), "rope_interleaved": None, "first_slot": None,
    },
    "zlab older": {"rope_parameters": ("rope_theta",), "target_layer_ids": (f"{IN_BLOCK}target_layer_ids",)},
    "zlab on gemma": {"embedding": (f"{IN_BLOCK}block_embedding",)},
    "zlab last layer": {"last_tap": None},
    "zlab sliding": {"layer_causal": ("is_causal",), "layer_windows": None},
    "zlab sliding, not causal": {"layer_windows": ("layer_types",)},
    "dflash2": {"layer_causal": ("is_causal",), "layer_windows": ("layer_types",), "first_slot": None},
    "modelopt": {"layer_causal": ("is_causal",), "first_slot": None},
    "modelopt use_swa": {"layer_causal": (f"{IN_BLOCK}causal",), "layer_windows": (f"{IN_BLOCK}use_swa",)},
    "modelopt use_swa, block past the window": {"layer_windows": (f"{IN_BLOCK}use_swa",)},
    "muse": {
        "target_layer_ids": ("target_layer_ids",), "layer_causal": None, "layer_windows": ("layer_types",),
        "first_slot": None, "rope_interleaved": None,
    },
    "muse on gemma": {"embedding": ("block_embedding",)},
    "jetspec": {"layer_causal": (f"{IN_BLOCK}causal_head",), "first_slot": None},
    "domino shifted 1": {"first_slot": (f"{IN_BLOCK}shift_label",)},
    "domino same place 0": {"first_slot": (f"{IN_BLOCK}shift_label",)},
    "dspark specforge": {"first_slot": None, "rope_interleaved": ("rope_is_neox_style",)},
    "dspark modelopt": {"first_slot": None},
    "deepspec dflash": {
        "target_layer_ids": ("target_layer_ids",), "embedding_scale": ("input_embedding_scale",), "first_slot": None,
    },
    "speculators dflash": {
        "target_layer_ids": ("aux_hidden_state_layer_ids",), "first_slot": ("sample_from_anchor",),
        "embedding_scale": None, "layer_causal": None, "rope_interleaved": None,
        "rope_parameters": (f"{IN_LAYER}rope_parameters.rope_theta",),
    },
    "speculators dflash sparse": {"rope_parameters": (f"{IN_LAYER}rope_theta",)},
    "speculators dflash sliding": {"layer_causal": ("sliding_window_non_causal",), "layer_windows": None},
    "speculators dflash sliding, not causal": {
        "layer_causal": ("sliding_window_non_causal",), "layer_windows": (f"{IN_LAYER}layer_types",),
    },
    "speculators dspark rnn": {"first_slot": ("sample_from_anchor",)},
    "angelspec dflash": {"first_slot": None, "layer_causal": ("is_causal",), "rope_parameters": ("rope_theta",)},
    "laguna": {
        "target_layer_ids": (f"{IN_BLOCK}target_layer_ids", "eagle_aux_hidden_state_layer_ids"), "first_slot": None,
        "layer_causal": (f"{IN_BLOCK}causal",),
    },
    "mimo": {"layer_windows": (f"{IN_BLOCK}use_swa",), "rope_parameters": ("rope_theta",), "first_slot": None},
    "gemma4": {"embedding_scale": None, "layer_causal": None, "first_slot": None},
}  # fmt: skip


class Deep:
    """A target of so many layers that a tap may move either way, and of one way to embed."""

    num_layers: ClassVar[int] = 8

    def embed(self, ids: Tensor, source: str) -> Tensor:
        if source == "target":
            return ids.float()
        raise UnsupportedTargetError("raw rows are not asked for here")


def readings(case: str, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], list[Alternative]]:
    """The files of a case, and all other readings of them."""
    if case in DESCRIBED:
        config, tensors, _ = DESCRIBED[case]()
        view: Any = Deep()
    else:
        made = CASES[case]()
        config, tensors, view = made.config, made.tensors, pair(made.target).view
    write_tiny(folder, config, tensors)
    drafter = load(folder)
    return config, tensors, alternatives(drafter.config, view, drafter.provenance)


def load(folder: Path) -> DFlashDrafter:
    return load_drafter(folder, dtype=torch.float32)


def meaning(config: DFlashConfig) -> dict[str, Any]:
    """Everything of a config that drafting depends on."""
    said = {key: value for key, value in config.to_dict().items() if key != "_name_or_path"}
    if not any(config.layer_windows):
        del said["window_rule"]
    return said


def edited(config: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """As a user with an editor would."""
    made = json.loads(json.dumps(config))
    for path, value in keys.items():
        scope, _, rest = path.rpartition(".")
        inside = made
        for part in filter(None, scope.split(".")):
            inside = inside[part]
        inside[rest] = value
    return made


@pytest.mark.parametrize("case", sorted({*CASES, *DESCRIBED}))
def test_keys_that_are_named_give_the_reading(case: str, tmp_path: Path) -> None:
    config, tensors, found = readings(case, tmp_path / "as it is")
    assert found
    for number, each in enumerate(found):
        if each.keys is not None:
            write_tiny(tmp_path / str(number), edited(config, each.keys), tensors)
            assert meaning(load(tmp_path / str(number)).config) == meaning(each.config), (each.words, each.keys)
    named: dict[str, set[tuple[str, ...] | None]] = {each.field: set() for each in found}
    for each in found:
        named[each.field] |= {None if each.keys is None else tuple(sorted(each.keys))}
    for field, keys in NAMED.get(case, {}).items():
        assert named[field] == {None} if keys is None else tuple(sorted(keys)) in named[field], (field, named[field])


def test_files_that_say_something_else_than_memory_name_no_key(tmp_path: Path) -> None:
    """A drafter that was described anew in memory: setting a key would not give what was tried."""
    made = CASES["zlab"]()
    write_tiny(tmp_path, made.config, made.tensors)
    drafter = load(tmp_path)
    drafter.config.target_layer_ids = [1, 0]
    found = alternatives(drafter.config, pair("llama").view, drafter.provenance)
    assert {each.keys is None for each in found if each.field == "target_layer_ids"} == {True}
    assert {each.keys is None for each in found if each.field == "rope_parameters"} == {False}
