"""The trainer on a tiny target: it learns, resumes exactly, and its simulated tau is what decoding gives."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from dflash_hf.errors import TrainingError
from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from dflash_hf.target.view import view_target
from dflash_hf.trace import merge_metrics
from dflash_hf.training.documents import Documents
from dflash_hf.training.evaluate import evaluate
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.regenerate import regenerate
from dflash_hf.training.run import Trainer
from tests.tiny import greedy, tiny_target


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A target, 24 of its answers, and a recipe."""
    folder = tmp_path_factory.mktemp("training")
    target = tiny_target("qwen3")
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(2, 90, (3 + n % 4,), generator=generator).tolist() for n in range(24)]
    regenerate(
        view_target(target), prompts, folder / "answers", [0, 2, 3], eos_ids=[7], max_new_tokens=24, batch_size=8
    )
    recipe = Recipe(
        documents=str(folder / "answers"), output=str(folder / "run"), target_layer_ids=(0, 2), mask_token_id=1,
        block_size=6, train_slots=4, documents_per_step=4, steps=12, learning_rate=3e-3, evaluate_every=6,
        evaluation_documents=4, save_minutes=0.0, head_sample=1000, anchors_per_document=9,
    )  # fmt: skip
    return target, prompts, recipe, folder


def test_regenerate_writes_what_plain_decoding_says_with_the_hosts_hidden_states(world):
    target, prompts, recipe, _ = world
    documents = Documents(recipe.documents, [0, 2], held_out=50)
    assert len(documents.training) + len(documents.evaluation) == 24
    for document in [*documents.held_out(1), *list(documents.shuffled(0, 0))[:5]]:
        prompt = document.ids[: document.prompt_length]
        assert prompt.tolist() in prompts
        text = greedy(target, prompt[None], 24, eos_token_id=7)
        assert torch.equal(document.ids, text[0])
        hidden = target(text[:, :-1], output_hidden_states=True).hidden_states
        expected = torch.cat([hidden[1], hidden[3]], dim=-1)[0].detach()
        torch.testing.assert_close(document.taps, expected, atol=0.05, rtol=0.02)  # stored in bfloat16


def test_regenerate_skips_finished_shards_and_refuses_other_settings(world):
    target, prompts, recipe, folder = world
    before = {path: path.stat().st_mtime_ns for path in (folder / "answers").glob("*.safetensors")}
    view = view_target(target)
    regenerate(view, prompts, folder / "answers", [0, 2, 3], eos_ids=[7], max_new_tokens=24, batch_size=8)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "answers").glob("*.safetensors")}
    with pytest.raises(TrainingError, match="max_new_tokens"):
        regenerate(view, prompts, folder / "answers", [0, 2, 3], eos_ids=[7], max_new_tokens=9, batch_size=8)


def test_training_lowers_the_loss_and_resumes_exactly(world):
    target, _, recipe, folder = world
    view = view_target(target)

    def losses(output):
        lines = [json.loads(line) for line in (folder / output / "log.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    whole = Trainer(view, replace(recipe, output=str(folder / "whole")))
    whole.train()
    broken = Trainer(view, replace(recipe, output=str(folder / "broken")))
    stop_at = 5
    one_step = broken._one_step
    broken._one_step = lambda documents: (
        setattr(broken, "_stopping", broken.step + 1 >= stop_at),
        one_step(documents),
    )[1]
    broken.train()
    assert len(losses("broken")) == stop_at
    resumed = Trainer(view, replace(recipe, output=str(folder / "broken")))
    assert resumed.step == stop_at
    resumed.train()
    assert losses("broken") == losses("whole")
    assert losses("whole")[-1] < losses("whole")[0]
    for mine, theirs in zip(resumed.drafter.parameters(), whole.drafter.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_changed_recipe_is_not_resumed(world):
    target, _, recipe, folder = world
    Trainer(view_target(target), replace(recipe, output=str(folder / "changed"), steps=1)).train()
    with pytest.raises(TrainingError, match="learning_rate"):
        Trainer(view_target(target), replace(recipe, output=str(folder / "changed"), steps=1, learning_rate=1e-3))


def test_simulated_tau_is_that_of_decoding(world):
    """On documents that end, walking the teacher-forced blocks is decoding without the target."""
    target, _, recipe, folder = world
    trainer = Trainer(view_target(target), replace(recipe, output=str(folder / "tau"), steps=30, warm_layers=(2, 3)))
    drafter = trainer.train()
    documents = list(trainer.documents.shuffled(0, 0))[:8]
    simulated = evaluate(drafter, trainer.view, documents)
    attach(target, drafter)
    traces = []
    for document in documents:
        new = len(document.ids) - document.prompt_length
        if new < 2:
            continue
        output = target.generate(document.ids[None, : document.prompt_length], max_new_tokens=new, do_sample=False)
        assert torch.equal(output[0], document.ids)
        traces.append(last_trace())
    metrics = merge_metrics(traces)
    assert metrics["num_accepted_draft_tokens"] > 0
    assert sum(len(trace.rounds) for trace in traces) == simulated.rounds


@pytest.mark.parametrize(
    ("change", "message"),
    [({"train_slots": 9}, "train_slots"), ({"causal": False}, "bidirectional"), ({"warm_layers": (1,)}, "warm_layers")],
)
def test_a_recipe_that_contradicts_itself_is_refused(world, change, message):
    with pytest.raises(TrainingError, match=message):
        replace(world[2], **change)


def test_a_recipe_file_takes_overrides_and_names_unknown_keys(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("documents: d\noutput: o\ntarget_layer_ids: [1, 3]\n")
    assert Recipe.read(path, ["steps=7", "causal=true"]).steps == 7
    with pytest.raises(TrainingError, match="stepz"):
        Recipe.read(path, ["stepz=7"])
