"""From a prompts file to a drafter that drafts, through the commands."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.cli.conftest import Files

RECIPE = """
target_layer_ids: [0, 1]
num_hidden_layers: 1
block_size: 4
mask_token_id: 5
documents_per_step: 2
steps: 4
learning_rate: 3.0e-3
evaluate_every: 2
held_out: 4
"""


@pytest.fixture
def target(files: Files, tmp_path: Path) -> Path:
    """The tiny target, made a chat model."""
    folder = tmp_path / "chatty"
    shutil.copytree(files.target, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} river{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def answers(target: Path, run, tmp_path: Path) -> Path:
    return answered(run, target, tmp_path / "answers", range(12))


def answered(run, target: Path, folder: Path, numbers: range) -> Path:
    prompts = folder.parent / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"question": f"a walk along {n}"}) + "\n" for n in numbers))
    made = run("data", "regenerate", prompts, folder, "--max-new-tokens", "12", "--target", target)
    assert made.exit_code == 0, made.output
    return folder


def test_answers_then_train_makes_a_drafter_that_loads_and_says_how_it_was_made(
    target: Path, run, tmp_path: Path, answers: Path
):
    recipe, others = tmp_path / "recipe.yaml", answered(run, target, tmp_path / "others", range(20, 25))
    recipe.write_text(RECIPE + f"answers: [{answers}]\noutput: {tmp_path / 'out'}\nevaluation: {{other: {others}}}\n")
    trained = run("train", recipe, "steps=3", "--target", target, "--json")
    assert trained.exit_code == 0, trained.output
    assert "on the fly" in trained.stderr and "step 3 of 3" in trained.stderr
    provenance, folder = json.loads(trained.stdout), tmp_path / "out" / "drafter"
    assert provenance["schema"] == "dflash-hf/provenance/2" and provenance["steps"] == 3
    assert provenance["command"] == "dflash-hf train recipe.yaml steps=3 --target chatty"
    assert set(provenance["evaluation"]) == {"held_out", "other"}
    assert len(provenance["evaluation"]["other"]["prompts_sha256"]) == 64
    assert provenance["answers"]["sources"] == {"prompts.jsonl": provenance["answers"]["documents"]}
    card = (folder / "README.md").read_text()
    assert "## What it accepts" in card and "| other | 5 |" in card and "base_model: " in card
    assert str(tmp_path) not in (folder / "provenance.json").read_text() + card, "no folders of this machine"
    drafter = ["--target", target, "--drafter", folder, "--device-map", "cpu", "--local-files-only"]
    answer = run("generate", "a walk", "--max-new-tokens", "8", "--json", *drafter)
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["plain"]["identical"] is True


def test_cached_features_train_the_drafter_that_features_on_the_fly_train(
    target: Path, run, tmp_path: Path, answers: Path
):
    """Up to the rounding of the cache; a second run finds the cache filled."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE + f"answers: [{answers}]\nloss: kl\n")
    curves = {}
    for name, mode in (("online", "online"), ("cached", "cached"), ("again", "cached")):
        done = run("train", recipe, f"output={tmp_path / name}", f"features={mode}", "--target", target)
        assert done.exit_code == 0, done.output
        lines = (tmp_path / name / "log.jsonl").read_text().splitlines()
        curves[name] = [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]
    assert "(0 new)" in done.stderr
    assert curves["cached"] == pytest.approx(curves["online"], rel=0.05)
    assert curves["again"] == curves["cached"]


def test_features_kept_while_answering_are_those_of_a_second_pass(target: Path, run, tmp_path: Path):
    prompts, folder = tmp_path / "prompts.jsonl", tmp_path / "answers"
    prompts.write_text("".join(json.dumps({"question": f"a walk along {n}"}) + "\n" for n in range(6)))
    made = run(
        "data", "regenerate", prompts, folder, "--max-new-tokens", "9", "--features", "0,1", "--final",
        "--target", target,
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    filled = run("data", "features", folder, "--layers", "0,1", "--final", "--target", target, "--json")
    assert filled.exit_code == 0, filled.output
    report = json.loads(filled.stdout)
    assert report["made"] == 0 and report["held"] == report["documents"] == 6


def test_what_cannot_be_trained_on_is_said_in_a_line(target: Path, run, tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE + f"answers: [{tmp_path / 'nothing'}]\noutput: {tmp_path / 'out'}\n")
    missing = run("train", recipe, "--target", target)
    assert missing.exit_code == 1 and "make answers with" in missing.stderr
    unknown = run("train", recipe, "stepz=3", "--target", target)
    assert unknown.exit_code == 1 and "stepz" in unknown.stderr


def test_the_command_to_do_it_again_names_what_it_was_made_from_and_measured_on(
    target: Path, run, tmp_path: Path, answers: Path
):
    """Folders by their last part, on card and provenance; and a start, with what is not known of it."""
    recipe, others = tmp_path / "recipe.yaml", answered(run, target, tmp_path / "others", range(20, 25))
    recipe.write_text(RECIPE + f"answers: [nowhere]\noutput: {tmp_path / 'out'}\n")
    given = [f"answers=[{answers}]", f"evaluation={{more: {others}}}", "threads=1", "evaluation_documents=3"]
    first = run("train", recipe, *given, "--target", target, "--dtype", "float32", "--json")
    assert first.exit_code == 0, first.output
    typed = json.loads(first.stdout)["command"]
    assert shlex.split(typed) == [
        *["dflash-hf", "train", "recipe.yaml", "answers=[answers]", "evaluation={more: others}"],
        *["evaluation_documents=3", "--target", "chatty", "--dtype", "float32"],
    ]
    card = (tmp_path / "out" / "drafter" / "README.md").read_text()
    assert typed in card and "Started from" not in card
    options = [f"start_from={tmp_path / 'out'}", f"output={tmp_path / 'again'}", "held_out=2", "num_hidden_layers=null"]
    again = run("train", recipe, *given, *options, "--target", target, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["started_from"] == {"name": "out", "prompts_not_compared": []}
    assert "held-out answers are left out: out was trained on their prompts" in again.stderr


def test_the_command_to_do_it_again_keeps_the_quantization():
    from dflash_hf.cli.command import TargetOptions
    from dflash_hf.cli.train import _typed
    from dflash_hf.training.recipe import Recipe

    settings = Recipe.of({"answers": ["a", "/b/c d"], "output": "o", "steps": 1})
    typed = _typed(Path("r.yaml"), settings, ["answers=[a, /b/c d]", "loss=kl"], TargetOptions(quantization="bnb-4bit"))
    assert typed == "dflash-hf train r.yaml 'answers=[a, c d]' loss=kl --quantization bnb-4bit"
