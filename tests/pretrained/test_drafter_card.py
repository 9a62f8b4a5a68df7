"""What the shipped drafter says of itself is true of its files, and can be done again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import dflash_hf
from dflash_hf.pretrained.smollm2 import EMBEDDED

ROOT = Path(__file__).parents[2]
FOLDER = Path(dflash_hf.__file__).parent / "pretrained" / EMBEDDED
pytestmark = pytest.mark.skipif(not (FOLDER / "config.json").is_file(), reason="installed without its data")


@pytest.fixture(scope="module")
def provenance() -> dict:
    return json.loads((FOLDER / "provenance.json").read_text())


def flat(text: str) -> str:
    """One line, with neither continuations nor quotes."""
    return " ".join(text.replace("\\\n", " ").replace("'", "").split())


def test_the_weights_are_those_the_provenance_names(provenance):
    assert hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest() == provenance["weights_sha256"]


def test_the_block_the_table_was_measured_at_is_said(provenance):
    """Trained and measured at 8, shipped at another."""
    config, measured = json.loads((FOLDER / "config.json").read_text()), provenance["evaluation"]["held_out"]
    assert config["block_size"] == provenance["block_size"] == 6
    assert measured["block_size"] == len(measured["accepted_by_position"]) + 1 == 8
    card = (FOLDER / "README.md").read_text()
    assert "Measured at block 8" in card and f"| held out | 40 | {measured['tau']:.2f} |" in card


def test_the_command_is_the_recipes_last(provenance):
    recipe = (ROOT / "recipes" / "smollm2-135m.yaml").read_text()
    comments = "\n".join(line.removeprefix("#") for line in recipe.splitlines() if line.startswith("#"))
    last = "dflash-hf train" + flat(comments).rpartition("dflash-hf train")[2]
    assert flat(provenance["command"]) == last
    assert last in flat((FOLDER / "README.md").read_text())
