"""Recipes: read, overridden, and refused with everything that is wrong in one message."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dflash_hf.errors import TrainingError
from dflash_hf.training.documents import Document
from dflash_hf.training.packs import first_fit, pack_tokens
from dflash_hf.training.recipe import Recipe

BASE = {"answers": ["a"], "output": "o", "steps": 3}


def test_a_recipe_file_takes_overrides(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("answers: [a, b]\noutput: o\ntarget_layer_ids: [1, 3]\nsteps: 5\nlearning_rate: 1e-3\n")
    recipe = Recipe.read(path, ["steps=7", "causal=true", "evaluation={gsm8k: e}"])
    assert (recipe.steps, recipe.causal, recipe.target_layer_ids) == (7, True, (1, 3))
    assert recipe.learning_rate == 1e-3, "YAML reads 1e-3 as text"
    assert recipe.evaluation == {"gsm8k": "e"}
    assert recipe.changed(steps=None, epochs=2).epochs == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepz": 7}, "stepz: no such key; known are answers"),
        ({"steps": "many"}, "steps: .*integer"),
        ({"epochs": 2}, "either steps or epochs"),
        ({"steps": None}, "either steps or epochs"),
        ({"answers": []}, "answers"),
        ({"start_from": "d", "warm_layers": [1]}, "two different starts"),
        ({"warm_layers": [1], "num_hidden_layers": 2}, "warm_layers names 1"),
        ({"block_size": 1}, "block_size"),
        ({"causal": True, "block_size": 4, "train_slots": 4}, "train_slots must be smaller"),
        ({"causal": False, "train_slots": 3}, "train_slots needs causal"),
        ({"target_layer_ids": [3, 1]}, "must ascend"),
        ({"muon_learning_rate": 0.1}, "muon_learning_rate is for"),
        ({"evaluation": {"held_out": "e"}}, "held_out is the name"),
        ({"steps": None, "epochs": float("inf")}, "epochs: .*finite"),
        ({"loss": "mse"}, "loss: .*'ce', 'kl' or 'hybrid'"),
        ({"learning_rate": -1, "clip": 0}, "learning_rate.*clip"),
    ],
)
def test_what_a_recipe_cannot_say_is_named(change, message):
    with pytest.raises(TrainingError, match=message):
        Recipe.of({**BASE, **change})


def test_a_file_that_is_no_recipe_is_named(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("answers: [")
    for path, overrides in [(tmp_path / "none.yaml", []), (broken, [])]:
        with pytest.raises(TrainingError, match=path.name):
            Recipe.read(path, overrides)
    broken.write_text("- answers\n- output\n")
    with pytest.raises(TrainingError, match="must be a mapping"):
        Recipe.read(broken, ["steps=3"])
    broken.write_text("answers: a\noutput: o\n")
    assert Recipe.read(broken, ["steps=3"]).answers == ("a",), "one folder need not be a list"
    with pytest.raises(TrainingError, match="'steps' is not key=value"):
        Recipe.read(broken, ["steps"])


def test_the_shipped_recipe_packs_documents_together():
    """Block slots count: fewer than a document's own would leave every document alone in its pack."""
    recipe = Recipe.read(Path(__file__).parents[2] / "recipes" / "qwen3-4b.yaml")
    ids = torch.zeros(600, dtype=torch.long)
    ordinary = pack_tokens(Document("d", ids, 99), 500, recipe.block_size)
    longest = recipe.max_length - 1 + recipe.anchors_per_document * recipe.block_size
    assert (ordinary, longest) == (8_599, 11_263), "the figures of the recipe and of docs/training.md"
    assert first_fit([ordinary] * 8, recipe.pack_tokens) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert first_fit([longest] * 8, recipe.pack_tokens) == [[0, 1, 2], [3, 4, 5], [6, 7]]
