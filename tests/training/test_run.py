"""The trainer on a tiny target: it learns by every loss, resumes exactly, and its simulated tau is that of decoding."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch

from dflash_hf.errors import TrainingError
from dflash_hf.generation.attach import attach, detach
from dflash_hf.generation.record import last_trace
from dflash_hf.training import checkpoint
from dflash_hf.training.evaluate import evaluate
from dflash_hf.training.features.features import OnTheFly
from tests.training.world import World


@pytest.fixture(scope="module")
def world():
    return World()


def losses(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def assert_same_weights(one, other):
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "kl", "position_weights": "dpace"},
        {"loss": "hybrid", "head_sample": 20},
        {"causal": True, "train_slots": 3, "head_sample": 20, "feature_noise": 0.05},
        {"pack_tokens": 400, "mask_form": "dense"},
        {"precision": "bfloat16"},
        {"warm_layers": [2, 3]},
    ],
    ids=lambda changes: "-".join(map(str, changes)) or "plain",
)
def test_training_lowers_the_loss(world, tmp_path, changes):
    trainer = world.trainer(tmp_path, steps=24, evaluate_every=24, **changes)
    seen = []
    trainer.train(seen.append)
    curve = losses(tmp_path)
    assert len(curve) == 24 and sum(curve[-4:]) < 0.9 * sum(curve[:4])
    assert {parameter.dtype for parameter in trainer.drafter.parameters()} == {torch.float32}, "master weights"
    assert [progress.step for progress in seen] == list(range(1, 25))
    assert seen[-1].tokens == trainer.tokens > 0 and seen[-1].seconds_left == 0


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="Muon came with torch 2.9; make test has 2.13")
def test_training_with_muon_lowers_the_loss(world, tmp_path):
    world.trainer(tmp_path, steps=24, optimizer="muon", muon_learning_rate=0.02).train()
    curve = losses(tmp_path)
    assert sum(curve[-4:]) < 0.9 * sum(curve[:4])


@pytest.mark.parametrize("stop", ["sigterm", "killed"])
def test_a_stopped_run_goes_on_as_if_unbroken(world, tmp_path, stop):
    """Every random draw in it: sampled anchors, sampled head rows, noise, several epochs."""
    options = {"head_sample": 20, "feature_noise": 0.05, "steps": 12}
    whole = world.trainer(tmp_path / "whole", **options)
    whole.train()
    first = world.trainer(tmp_path / "broken", save_minutes=0.0, **options)

    def interrupt(progress):
        if progress.step == 5:
            if stop == "killed":  # between two saves: what came after the last is lost and made again
                raise SystemExit
            os.kill(os.getpid(), signal.SIGTERM)

    if stop == "killed":
        with pytest.raises(SystemExit):
            first.train(interrupt)
    else:
        first.train(interrupt)
    assert not first.finished
    resumed = world.trainer(tmp_path / "broken", **options)
    assert resumed.step == {"killed": 4, "sigterm": 5}[stop]
    resumed.train()
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
    assert_same_weights(resumed.drafter, whole.drafter)
    assert resumed.tokens == whole.tokens


def test_accumulated_packs_give_the_gradient_of_one(world, tmp_path):
    """Documents one by one, two by two or all at once: the same step, up to rounding."""
    drafters = []
    for tokens in (0, 200, 10_000):
        trainer = world.trainer(tmp_path / str(tokens), steps=2, pack_tokens=tokens)
        trainer.train()
        drafters.append(trainer.drafter.state_dict())
    for name, weight in drafters[0].items():
        for other in drafters[1:]:
            torch.testing.assert_close(other[name], weight, atol=2e-5, rtol=1e-4)


def test_a_loss_that_is_no_number_stops_the_run_with_the_weights_before_it(world, tmp_path):
    trainer = world.trainer(tmp_path, steps=6)

    def poison(progress):
        if progress.step == 3:
            trainer.features = Poisoned(trainer.features)

    with pytest.raises(TrainingError, match=r"step 3: loss nan.*start_from="):
        trainer.train(poison)
    kept = checkpoint.drafter_of_run(tmp_path)
    assert all(torch.isfinite(weight).all() for weight in kept.state_dict().values())
    assert_same_weights(kept, trainer.drafter)
    again = world.trainer(tmp_path / "again", start_from=str(tmp_path), num_hidden_layers=None)
    assert_same_weights(again.drafter, kept)


class Poisoned:
    def __init__(self, features):
        self.features = features

    def of(self, documents):
        found = self.features.of(documents)
        for feature in found:
            feature.taps.fill_(float("nan"))
        return found


def test_a_changed_recipe_or_corpus_is_not_resumed(world, tmp_path):
    world.trainer(tmp_path, steps=1).train()
    with pytest.raises(TrainingError, match="learning_rate"):
        world.trainer(tmp_path, steps=1, learning_rate=1e-4)
    assert world.trainer(tmp_path, steps=1, save_minutes=3.0).finished


def test_simulated_tau_is_that_of_decoding(world, tmp_path):
    """On greedy answers that end, walking the teacher-forced blocks is decoding without the target, round by round."""
    trainer = world.trainer(tmp_path, steps=30, warm_layers=[2, 3])
    drafter = trainer.train()
    documents = [*trainer.corpus.training[:8], *trainer.corpus.held_out]
    features = OnTheFly(world.view, [0, 2])
    attach(world.target, drafter)
    try:
        for document in documents:
            new = document.answer_length
            prompt = document.ids[None, : document.prompt_length]
            output = world.target.generate(prompt, max_new_tokens=new, do_sample=False)
            assert torch.equal(output[0], document.ids)
            simulated = evaluate(drafter, world.view, [document], features)
            rounds = last_trace().rounds
            assert [simulated.rounds, simulated.committed] == [len(rounds), sum(r.committed for r in rounds)]
    finally:
        detach(world.target)
    whole = evaluate(drafter, world.view, documents, features)
    assert whole.tau > 1.1 and whole.ended > 0
    assert whole.accepted_by_position == sorted(whole.accepted_by_position, reverse=True)
    assert whole.committed == sum(whole.accepted) + whole.rounds - whole.ended
