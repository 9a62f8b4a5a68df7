"""From a run to a folder: the run is left alone, and the folder says how it was made."""

from __future__ import annotations

import json

import torch

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.training.evaluate import evaluate
from dflash_hf.training.gather import thinking_mode
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
