"""From a run to a folder: the run is left alone, and the folder says how it was made."""

from __future__ import annotations

import json
import resource

import pytest
import torch

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import TrainingError
from dflash_hf.training.evaluate import evaluate
from dflash_hf.training.gather import thinking_mode
from dflash_hf.training.origin import Origin
from dflash_hf.training.publish import publish
from tests.training.world import World


def test_publish_measures_what_it_writes_and_leaves_the_run_alone(tmp_path):
    world = World(answers=12, new_tokens=12)
    trainer = world.trainer(tmp_path / "run", steps=2)
    trainer.train()
    before = {name: weight.clone() for name, weight in trainer.drafter.state_dict().items()}
    made = [{"target": "tiny", "chat": {"thinking": False}}]
    provenance = publish(trainer, tmp_path / "drafter", answers=made, command="dflash-hf train r.yaml")
    for name, weight in trainer.drafter.state_dict().items():
        assert torch.equal(weight, before[name]), "float32 master weights, not rounded ones"
    written = DFlashDrafter.from_pretrained(tmp_path / "drafter", dtype=torch.float32)
    documents = trainer.evaluated()["held_out"]
    assert (
        provenance["evaluation"]["held_out"].items()
        >= evaluate(written, world.view, documents, trainer.features).row().items()
    )
    assert json.loads((tmp_path / "drafter" / "provenance.json").read_text()) == provenance
    card = (tmp_path / "drafter" / "README.md").read_text()
    assert "| Thinking mode | off |" in card and "dflash-hf train r.yaml" in card


def test_thinking_modes_that_differ_are_called_mixed():
    on, off, none = ({"chat": {"thinking": mode}} for mode in (True, False, None))
    assert [thinking_mode(made) for made in ([on, on], [off], [none], [on, off])] == [True, False, None, "mixed"]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    trainer = World(answers=12, new_tokens=12).trainer(tmp_path_factory.mktemp("run"), steps=1)
    trainer.train()
    return trainer


def test_a_disk_that_takes_no_more_leaves_the_drafter_that_was_there(trainer, tmp_path):
    """safetensors has an error of its own for it."""
    publish(trainer, tmp_path, answers=[{}], command="the first")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most[1]))
    try:
        with pytest.raises(TrainingError, match="could not be written to .*the run's state is kept"):
            publish(trainer, tmp_path, answers=[{}], command="the second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_new_drafter_has_a_card_of_its_own(trainer, tmp_path):
    """Nothing of the card before it is kept, be it one that no reader understands."""
    (tmp_path / "README.md").write_text("---\n: [\n---\nan old card\n")
    publish(trainer, tmp_path, answers=[{}], command="dflash-hf train r.yaml")
    card = (tmp_path / "README.md").read_text()
    assert "an old card" not in card and card.count("## How it was made") == 1 and card.startswith("---\nbase_model: ")


@pytest.mark.parametrize("uncompared", [(), ("held_out", "more")])
def test_the_card_names_the_start_and_what_its_prompts_were_not_compared_with(
    trainer, tmp_path, uncompared, monkeypatch
):
    monkeypatch.setattr(trainer, "origin", Origin("owner/first", uncompared=uncompared))
    provenance = publish(trainer, tmp_path, answers=[{}])
    assert provenance["started_from"] == {"name": "owner/first", "prompts_not_compared": list(uncompared)}
    card = " ".join((tmp_path / "README.md").read_text().split())
    assert "| Started from | owner/first |" in card
    said = "were not compared with those that owner/first, which this drafter started from, was trained on: held"
    assert (said in card) == bool(uncompared)


def test_a_drafter_begun_anew_has_no_start(trainer, tmp_path):
    assert "started_from" not in publish(trainer, tmp_path, answers=[{}])
    assert "Started from" not in (tmp_path / "README.md").read_text()
