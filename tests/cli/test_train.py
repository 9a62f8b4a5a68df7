"""From a prompts file to a drafter that drafts, through the two commands."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Files

RECIPE = """
target_layer_ids: [0, 2]
block_size: 4
train_slots: 4
causal: false
mask_token_id: 5
documents_per_step: 2
steps: 4
learning_rate: 3.0e-3
evaluate_every: 2
evaluation_documents: 2
"""


def test_regenerate_then_train_makes_a_drafter_that_loads_and_says_how_it_was_made(files: Files, run, tmp_path: Path):
    prompts, answers, recipe = tmp_path / "prompts.jsonl", tmp_path / "answers", tmp_path / "recipe.yaml"
    prompts.write_text("".join(json.dumps({"question": f"a walk along {n}"}) + "\n" for n in range(6)))
    recipe.write_text(RECIPE + f"documents: {answers}\noutput: {tmp_path / 'out'}\n")
    made = run(
        "data", "regenerate", prompts, answers, "--layers", "0,2", "--max-new-tokens", "12", "--target", files.target
    )
    assert made.exit_code == 0, made.output
    trained = run("train", recipe, "steps=3", "--target", files.target, "--json")
    assert trained.exit_code == 0, trained.output
    provenance = json.loads(trained.stdout)
    folder = tmp_path / "out" / "drafter"
    assert provenance["schema"] == "dflash-hf/provenance/1" and provenance["steps_done"] == 3
    assert provenance["answers"]["target"] == "target", "no folders of this machine"
    assert str(tmp_path) not in (folder / "provenance.json").read_text() + (folder / "README.md").read_text()
    drafter = ["--target", files.target, "--drafter", folder, "--device-map", "cpu", "--local-files-only"]
    answer = run("generate", "a walk", "--max-new-tokens", "8", "--json", *drafter)
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["plain"]["identical"] is True


def test_what_cannot_be_trained_on_is_said_in_a_line(files: Files, run, tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE + f"documents: {tmp_path / 'nothing'}\noutput: {tmp_path / 'out'}\n")
    missing = run("train", recipe, "--target", files.target)
    assert missing.exit_code == 1 and "holds no answers" in missing.stderr
    unknown = run("train", recipe, "stepz=3", "--target", files.target)
    assert unknown.exit_code == 1 and "stepz" in unknown.stderr
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"question": "a walk"}\n')
    outside = run("data", "regenerate", prompts, tmp_path / "a", "--layers", "0,9", "--target", files.target)
    assert outside.exit_code == 2 and "layers 0 to 2" in outside.stderr
