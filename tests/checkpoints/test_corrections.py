"""What running the authors' code corrected in the survey (its section 13), point by point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_hf.checkpoints.load import load_drafter
from tests.checkpoints.cases import CASES
from tests.checkpoints.reference.arithmetic import Vector, norm
from tests.checkpoints.slow_target import load
from tests.checkpoints.test_dialect_maths import check
from tests.checkpoints.test_named_bugs import hold, rules
from tests.checkpoints.tiny import write_tiny
from tests.checkpoints.tiny_dialects import SLIDING, WIDTH, WINDOW, W, dspark, modelopt, speculators


def test_point_1_angelspecs_dspark_under_specforges_architecture_is_same_position(tmp_path: Path) -> None:
    ours, theirs = CASES["angelspec dspark"](), dspark("vanilla", architectures=["DSparkDraftModel"])
    assert ours.config["architectures"] == theirs.config["architectures"]
    hold(ours, tmp_path / "a", lambda d: replace(d, first=0, drafts=d.block))
    hold(theirs, tmp_path / "b", lambda d: replace(d, first=1, drafts=d.block - 1))


def test_point_2_a_speculators_config_py_is_never_run(tmp_path: Path) -> None:
    made = speculators("dflash")
    write_tiny(tmp_path, made.config, made.tensors)
    (tmp_path / "config.py").write_text("raise SystemExit('this must not run')")
    assert load_drafter(tmp_path).provenance.dialect == "speculators-dflash"


def test_point_2_a_sparse_layer_config_takes_its_class_defaults_and_shows_them(tmp_path: Path) -> None:
    made = CASES["speculators dflash sparse"]()
    hold(made, tmp_path, rules(theta=1e6), rules(theta=1e7))
    defaults = load(made, tmp_path).provenance.defaults
    assert "rope_theta=10000.0: default of the config class of transformer_layer_config" in defaults


def test_point_3_a_model_optimizer_theta_is_doubted(tmp_path: Path) -> None:
    assert any("rope_theta" in note for note in load(modelopt(), tmp_path).provenance.notes)


def test_point_4_a_speculators_window_counts_from_the_anchor(tmp_path: Path) -> None:
    slide = {"layer_types": [SLIDING] * 2, **WINDOW}
    for name, free in (("causal", False), ("free", True)):
        made = speculators("dflash", layer=slide, sliding_window_non_causal=free)
        wrong = rules(counting="query"), rules(windows=[W - 1] * 2), rules(windows=[W + 1] * 2)
        hold(made, tmp_path / name, *wrong)


def test_point_4_a_muse_window_is_one_key_wider(tmp_path: Path) -> None:
    hold(CASES["muse"](), tmp_path, rules(counting="query"), rules(windows=[W + 1] * 2))


@pytest.mark.parametrize("case", ["zlab sliding, not causal", "zlab sliding", "dflash2", "dspark specforge rnn"])
def test_point_4_a_z_lab_window_counts_the_query(case: str, tmp_path: Path) -> None:
    made = CASES[case]()
    layers = [kind == SLIDING for kind in made.config["layer_types"]]
    wrong = [rules(windows=[W + off if slides else None for slides in layers]) for off in (-1, 1)]
    hold(made, tmp_path, *wrong, rules(counting="anchor"))


def test_point_4_a_model_optimizer_window_leaves_the_block_whole(tmp_path: Path) -> None:
    hold(
        CASES["modelopt use_swa, block past the window"](), tmp_path, rules(counting="query"), rules(counting="anchor")
    )


@pytest.mark.parametrize("shifted", ["shifted", "same place"])
@pytest.mark.parametrize("prefix", [0, 1])
def test_point_5_domino_gives_one_draft_less_than_slots(shifted: str, prefix: int, tmp_path: Path) -> None:
    config = load(CASES[f"domino {shifted} {prefix}"](), tmp_path).config
    assert (config.num_draft_tokens, config.first_slot) == (config.block_size - 1, 0 if shifted == "shifted" else 1)


def test_point_6_jetspecs_adapter_is_applied_to_each_tap(tmp_path: Path) -> None:
    made = CASES["jetspec adapter"]()
    adapter = made.tensors["hidden_dim_adapter.proj.weight"].double().numpy()

    def first_tap_only(taps: list[Vector]) -> list[Vector]:
        weights = {name: made.tensors[name].double().numpy() for name in ("fc.weight", "hidden_norm.weight")}
        joined = weights["fc.weight"][:, :WIDTH] @ (adapter @ taps[0]) + weights["fc.weight"][:, WIDTH:] @ taps[1]
        return [norm(joined, weights["hidden_norm.weight"], 1e-6)] * 2

    hold(made, tmp_path, lambda d: replace(d, fuse=first_tap_only))


def test_point_8_angelspec_without_block_size_means_8(tmp_path: Path) -> None:
    made = CASES["angelspec dflash"]()
    assert "block_size" not in made.config and "embed_tokens.weight" in made.tensors
    hold(made, tmp_path, lambda d: replace(d, block=16), lambda d: replace(d, embedding="scaled"), rules(theta=1e4))
    assert load(made, tmp_path / "8").config.block_size == 8


def test_point_8_angelspecs_num_target_layers_counts_taps(tmp_path: Path) -> None:
    made = CASES["angelspec dflash"]()
    assert made.config["num_target_layers"] == 2
    assert load(made, tmp_path).config.num_target_layers == 4
    check(made, tmp_path / "again")
