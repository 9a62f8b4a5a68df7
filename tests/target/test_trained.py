"""A warning where a text outgrows its drafter: once a pair, both numbers, and only where it is the drafter's fault."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

import dflash_hf
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.target.trained import trained_positions
from tests.scripted import tiny_config
from tests.tiny import prompt, tiny_target

END = 24


def pair(own=512, **changes):
    model = dflash_hf.attach(tiny_target())
    model.config.max_position_embeddings = own
    return model, DFlashDrafter(tiny_config(model, **{"max_position_embeddings": END} | changes)).eval()


def said(model, drafter, length=30, **options):
    """The warnings of one call that speak of positions."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.generate(prompt(length), assistant=drafter, max_new_tokens=12, do_sample=False, **options)
    return [each for each in caught if "position" in str(each.message)]


@pytest.mark.parametrize(("length", "reached"), [(30, 30), (20, END)])
def test_a_text_past_the_drafters_positions_is_told_once(length, reached):
    model, drafter = pair()
    (warning,) = said(model, drafter, length)
    text = str(warning.message)
    assert issubclass(warning.category, dflash_hf.errors.DFlashWarning) and warning.filename == __file__
    assert "reached position" in text and f"is for {END} positions" in text
    assert int(text.split("reached position ")[1].split(",")[0]) >= reached
    assert f"DFlashOptions(draft_window={END})" in text
    assert said(model, drafter, 40) == [], "the same pair is told once"
    again = DFlashDrafter(drafter.config).eval()
    assert len(said(model, again)) == 1, "another pair is told again"


def test_nothing_is_said_before_it_gets_that_far():
    assert said(*pair(), length=10) == []


@pytest.mark.parametrize(
    ("own", "changes", "options"),
    [
        (512, {"max_position_embeddings": None}, {}),
        (512, {"layer_windows": [6, END]}, {}),
        (512, {}, {"dflash": {"draft_window": END}}),
        (512, {}, {"dflash": {"max_draft_tokens": 0}}),
        (16, {}, {}),
        (END, {}, {}),
    ],
    ids=["unlimited", "windows", "draft_window", "no_drafts", "target_ends_before", "target_ends_there"],
)
def test_no_warning_where_the_drafter_is_not_the_one_to_blame(own, changes, options):
    assert said(*pair(own, **changes), **options) == []


@pytest.mark.parametrize(
    ("changes", "options"),
    [({"layer_windows": [6, None]}, {}), ({}, {"dflash": {"draft_window": END + 1}})],
    ids=["one_full_layer", "too_wide"],
)
def test_a_window_that_does_not_end_the_reach_excuses_nothing(changes, options):
    assert len(said(*pair(**changes), **options)) == 1


def rope(**values):
    return SimpleNamespace(max_position_embeddings=100, rope_parameters=values)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (SimpleNamespace(), None),
        (SimpleNamespace(n_positions=64), 64),
        (rope(rope_type="default", rope_theta=1e4), 100),
        (rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=50), 200),
        (rope(rope_type="llama3", factor=8.0, original_max_position_embeddings=10), 100),
        (rope(full_attention={"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 50}), 150),
        (rope(rope_type="dynamic", factor=2.0), None),
        (SimpleNamespace(max_position_embeddings=100, rope_scaling={"type": "dynamic", "factor": 2.0}), None),
    ],
)
def test_trained_positions_reads_both_spellings_and_scalings(config, positions):
    assert trained_positions(config) == positions
