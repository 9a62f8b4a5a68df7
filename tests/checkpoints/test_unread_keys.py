"""A key that changes what a drafter computes is honoured, or refused by name: by every dialect."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import CheckpointError, DFlashWarning, UnsupportedCheckpointError
from tests.checkpoints.cases import CASES
from tests.checkpoints.described_files import laguna, mimo
from tests.checkpoints.slow_target import load
from tests.checkpoints.tiny import write_tiny
from tests.checkpoints.tiny_dialects import FULL, SLIDING, WINDOW, Checkpoint, W


def with_keys(case: str, keys: dict[str, Any]) -> Checkpoint:
    """The case with more keys, beside where it has its drafter keys."""
    made = CASES[case]()
    config = {**made.config, **keys}
    if "dflash_config" in config:
        config = {**made.config, "dflash_config": {**made.config["dflash_config"], **keys}}
    return replace(made, config=config)


UNREAD: dict[str, tuple[str, dict[str, Any]]] = {
    "a factor on values in DFlash 2": ("dflash2", {"attention_value_scale": 0.6}),
    "a factor on values in Domino": ("domino shifted 1", {"attention_value_scale": 0.6}),
    "a factor on values in DSpark": ("dspark specforge", {"attention_value_scale": 0.6}),
    "a factor on values in DFlare": ("angelspec dflare", {"attention_value_scale": 0.6}),
    "a factor on values in speculators": ("speculators dflash", {"attention_value_scale": 0.6}),
    "a factor on values in JetSpec": ("jetspec", {"attention_value_scale": 0.6}),
    "an unknown attention": ("zlab", {"attention_mode": "weird"}),
    "an unknown attention in DSpark": ("dspark specforge", {"attention_mode": "weird"}),
    "an unknown attention of a layer": ("zlab", {"attention_modes": ["gqa", "weird"]}),
    "an unknown fusion": ("zlab", {"fusion_type": "weird"}),
    "an unknown variant": ("dflash2", {"model_arch": "weird"}),
    "a causal head in DSpark": ("dspark specforge", {"causal_head": True}),
    "causal in speculators": ("speculators dflash", {"is_causal": True}),
    "causal in Muse's layout": ("muse", {"is_causal": True}),
    "a multiplier in Muse's layout": ("muse", {"output_multiplier": 0.5}),
    "a soft cap in speculators": ("speculators dflash", {"final_logit_softcapping": 20.0}),
    "sinks in Domino": ("domino shifted 1", {"attention_sink_bias": True}),
    "a rotary base of the context's own": ("dflash2", {"backbone_rotary_base": 5000000}),
    "a gate": ("zlab", {"gating": "per-head"}),
    "windows in speculators": ("speculators dflash", {"use_swa": True}),
    "a shift in Muse's layout": ("muse", {"shift_label": True}),
    "a Markov rank without a head": ("zlab", {"markov_rank": 64}),
    "a projector in Muse's layout": ("muse", {"projector_type": "domino"}),
    "a projector of another head in Muse's layout": ("muse", {"projector_type": "dflash2"}),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_key_nobody_reads_here_is_refused_by_name(name: str, tmp_path: Path) -> None:
    case, keys = UNREAD[name]
    made = with_keys(case, keys)
    load(CASES[case](), tmp_path / "before")
    write_tiny(tmp_path / "after", made.config, made.tensors)
    with pytest.raises(CheckpointError, match=f"{next(iter(keys))} is "):
        load_drafter(tmp_path / "after")


SAID_ANYWAY = {
    "attention_mode": "gqa", "attention_value_scale": 1.0, "fusion_type": "concat_fc", "model_arch": "dflash",
    "markov_rank": 0, "selector_rank": 0, "gate_temperature": 1.0, "use_swa": False, "is_causal": False,
    "attention_sink_bias": False, "enable_hidden_correction": False, "shift_label": False,
}  # fmt: skip


@pytest.mark.parametrize("case", ["zlab", "muse", "speculators dflash", "angelspec dflash"])
def test_a_key_that_says_what_is_anyway_changes_nothing(case: str, tmp_path: Path) -> None:
    said = {key: value for key, value in SAID_ANYWAY.items() if case != "zlab" or key != "use_swa"}
    plain, more = (load(made, tmp_path / str(i)) for i, made in enumerate((CASES[case](), with_keys(case, said))))
    assert described(plain) == described(more)


def described(drafter: DFlashDrafter) -> dict[str, Any]:
    return {key: value for key, value in drafter.config.to_dict().items() if key != "_name_or_path"}


def test_lagunas_scales_are_read_and_its_keys_are_named(tmp_path: Path) -> None:
    config, tensors, _ = laguna()
    config["dflash_config"] |= {"output_multiplier": 0.5}
    write_tiny(tmp_path / "scaled", config, tensors)
    drafter = load_drafter(tmp_path / "scaled")
    assert drafter.config.output_multiplier == 0.5
    assert drafter.provenance.origins["layer_windows"] == "sliding_window, layer_types"
    config["dflash_config"] |= {"attention_value_scale": 0.6}
    write_tiny(tmp_path / "values", config, tensors)
    with pytest.raises(UnsupportedCheckpointError, match="attention_value_scale is 0.6.*laguna"):
        load_drafter(tmp_path / "values")


@pytest.mark.parametrize(
    ("keys", "windows", "causal"),
    [
        ({"layer_types": [SLIDING, FULL], **WINDOW}, [W, None], [True, False]),
        ({"layer_types": [SLIDING, FULL], "is_causal": False, **WINDOW}, [W, None], [False, False]),
        ({"layer_types": [FULL, FULL]}, [None, None], [False, False]),
        ({"layer_types": [SLIDING] * 2, "use_swa": True, **WINDOW}, [W, W], [False, False]),
        ({"layer_types": [FULL] * 2, "use_swa": True, "swa_window_size": 3}, [3, 3], [False, False]),
    ],
)
def test_layer_types_mean_with_sinks_what_they_mean_in_zlabs_files(
    keys: dict[str, Any], windows: list[int | None], causal: list[bool], tmp_path: Path
) -> None:
    config, tensors, _ = mimo(use_swa=None, swa_window_size=None)
    write_tiny(tmp_path, config | {"layer_types": None} | keys, tensors)
    found = load_drafter(tmp_path).config
    assert found.attention_sinks and found.layer_windows == windows and found.layer_causal == causal


def test_lists_of_a_reduced_head_must_agree(tmp_path: Path) -> None:
    made = CASES["speculators dflash"]()
    marks = made.tensors["t2d"].clone()
    first = int(marks.nonzero()[0])
    marks[first] = False
    for name, tensors, message in (
        ("other", {**made.tensors, "t2d": marks}, f"d2t and t2d contradict each other.*: {first}"),
        ("alone", {key: value for key, value in made.tensors.items() if key != "d2t"}, "t2d.*but no d2t"),
    ):
        write_tiny(tmp_path / name, made.config, tensors)
        with pytest.raises(CheckpointError, match=message):
            load_drafter(tmp_path / name)


def test_speculators_copies_of_the_verifier_are_left_alone(tmp_path: Path) -> None:
    made = CASES["speculators dflash"]()
    copies = {"verifier_norm.weight": torch.zeros(2), "verifier_lm_head.weight": torch.zeros(2)}
    write_tiny(tmp_path, made.config, made.tensors | copies)
    assert load_drafter(tmp_path).config.reduced_vocabulary


@pytest.mark.parametrize(("block", "case"), [("dspark_config", "dspark specforge"), ("domino_config", "zlab")])
def test_blocks_beside_dflash_config_are_read_and_refused_alike(block: str, case: str, tmp_path: Path) -> None:
    """SpecForge's newer layout; a value in it stands before the top level's, and must be that of dflash_config."""
    made = CASES[case]()
    config = {**made.config, "output_multiplier": 0.5, block: {"output_multiplier": 0.25}}
    write_tiny(tmp_path / "read", config, made.tensors)
    drafter = load_drafter(tmp_path / "read")
    assert drafter.config.output_multiplier == 0.25
    assert drafter.provenance.origins["output_multiplier"] == f"{block}.output_multiplier"
    for name, inside, message in (
        ("unread", {"gating": "per-head"}, f"{block}.gating is 'per-head'"),
        ("other", {"mask_token_id": 5}, f"contradicts itself: dflash_config.mask_token_id.*{block}.mask_token_id is 5"),
        ("no object", [1], f"{block} is .1., a JSON object is needed"),
    ):
        write_tiny(tmp_path / name, {**made.config, block: inside}, made.tensors)
        with pytest.raises(CheckpointError, match=message):
            load_drafter(tmp_path / name)


def test_keys_of_specforges_training_are_no_news(tmp_path: Path) -> None:
    """They lie in every DSpark file of its, and nothing of drafting depends on them; an unknown one is reported."""
    alphas = {"confidence_head_alpha": 1.0, "ce_loss_alpha": 0.1, "l1_loss_alpha": 0.9}
    made = with_keys("dspark specforge", alphas | {"loss_decay_gamma": 4.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error", DFlashWarning)
        load(made, tmp_path / "plain")
    made = CASES["dspark specforge"]()
    write_tiny(tmp_path / "odd", {**made.config, "dspark_config": {"whatever": 1}}, made.tensors)
    with pytest.warns(DFlashWarning, match=r"dspark_config\.whatever"):
        load_drafter(tmp_path / "odd")
