"""Reduced heads, Markov heads and selectors: trained, written, read back, and worth what their evaluation says."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import TrainingError
from dflash_hf.generation.attach import attach, detach
from dflash_hf.generation.record import last_trace
from dflash_hf.target.logits import drafter_scale
from dflash_hf.training import checkpoint
from dflash_hf.training.evaluate import evaluate
from dflash_hf.training.features.features import OnTheFly
from dflash_hf.training.publish import publish
from dflash_hf.training.reduced_vocabulary import covered, frequent_tokens
from dflash_hf.training.start import starting_drafter
from tests.training.world import World

KINDS = {
    "reduced": ({"draft_vocab_size": 30}, "speculators-dflash"),
    "markov": ({"head": "markov", "markov_rank": 8}, "dspark"),
    "markov of its own place": ({"head": "markov", "markov_rank": 8, "first_slot": 1}, "speculators-dspark"),
    "reduced markov": (
        {"draft_vocab_size": 30, "head": "markov", "markov_rank": 8, "loss": "kl"},
        "speculators-dspark",
    ),
    "shifted": ({"first_slot": 0}, "deepspec-dflash"),
    "selector": ({"head": "selector", "selector_rank": 8, "selector_top_k": 4}, "dflash2"),
    "reduced selector": (
        {"head": "selector", "draft_vocab_size": 30, "position_weights": "dpace"},
        "speculators-dflash2",
    ),
}
IN_EVERY_RUN = ("reduced markov", "reduced selector")  # every part among them; the others are for `make test-slow`
every_kind = pytest.mark.parametrize(
    "kind", [kind if kind in IN_EVERY_RUN else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)


@pytest.fixture(scope="module")
def world():
    return World(answers=10, new_tokens=16)


def weights(drafter):
    return {name: tensor.clone() for name, tensor in drafter.state_dict().items()}


@every_kind
def test_what_is_written_drafts_the_same_text_in_the_rounds_the_evaluation_counts(world, tmp_path, kind):
    changes, dialect = KINDS[kind]
    trainer = world.trainer(tmp_path / "run", steps=12, evaluate_every=12, **changes)
    before = weights(trainer.drafter)
    trainer.train()
    moved = {name for name, tensor in trainer.drafter.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name in before if not name.startswith(("lm_head", "vocabulary", "embed_tokens"))}
    publish(trainer, tmp_path / "drafter", answers=[], dtype=torch.float32)
    written = DFlashDrafter.from_pretrained(tmp_path / "drafter", target=world.target)
    assert written.provenance.dialect == dialect
    for name, tensor in written.state_dict().items():
        assert torch.equal(tensor, trainer.drafter.state_dict()[name]), name
    features = OnTheFly(world.view, [0, 2])
    attach(world.target, written)
    try:
        for document in trainer.corpus.training[:4]:
            prompt, new = document.ids[None, : document.prompt_length], document.answer_length
            output = world.target.generate(prompt, max_new_tokens=new, do_sample=False)
            assert torch.equal(output[0], document.ids)
            simulated, rounds = evaluate(written, world.view, [document], features), last_trace().rounds
            assert [simulated.rounds, simulated.committed] == [len(rounds), sum(r.committed for r in rounds)]
    finally:
        detach(world.target)


@every_kind
def test_a_stopped_run_goes_on_as_if_unbroken(world, tmp_path, kind):
    options = {**KINDS[kind][0], "steps": 6, "feature_noise": 0.05, "save_minutes": 0.0}
    whole = world.trainer(tmp_path / "whole", **options)
    whole.train()

    def interrupt(progress):
        if progress.step == 4:
            raise SystemExit

    with pytest.raises(SystemExit):
        world.trainer(tmp_path / "broken", **options).train(interrupt)
    resumed = world.trainer(tmp_path / "broken", **options)
    assert 0 < resumed.step < 6
    resumed.train()
    for name, tensor in resumed.drafter.state_dict().items():
        assert torch.equal(tensor, whole.drafter.state_dict()[name]), name


@every_kind
def test_added_parts_change_nothing_until_they_are_trained_and_are_gone_on_with(world, tmp_path, kind):
    changes = {key: value for key, value in KINDS[kind][0].items() if key not in ("loss", "first_slot")}
    plain = world.trainer(tmp_path / "plain", steps=8)
    plain.train()
    started = {"start_from": str(tmp_path / "plain"), "num_hidden_layers": None, **changes}
    added = world.trainer(tmp_path / "added", steps=8, **started)
    documents, features = added.corpus.training[:6], added.features
    if "draft_vocab_size" not in changes:
        counts = [evaluate(run.drafter, world.view, documents, features) for run in (plain, added)]
        assert counts[0] == counts[1]
    added.train()
    again = world.trainer(tmp_path / "again", **{**started, "start_from": str(tmp_path / "added")})
    for name, tensor in added.drafter.state_dict().items():
        assert torch.equal(tensor, again.drafter.state_dict()[name]), name


class ChainWorld(World):
    """Every other token is one of two at random, and decides the next: only a head that knows it can go on."""

    def _answer(self, number, prompt, new_tokens):
        answer, draw = super()._answer(number, prompt, 1), random.Random(number)
        said = [token for _ in range(new_tokens // 2) for token in draw.choice([(20, 40), (21, 53)])]
        return replace(answer, answer_ids=said)


@pytest.mark.parametrize(
    ("changes", "silenced"),
    [
        pytest.param({"head": "markov", "markov_rank": 16}, "norm.weight", marks=pytest.mark.slow),
        ({"head": "markov", "markov_rank": 16, "first_slot": 1}, "norm.weight"),
        (
            {"head": "selector", "selector_rank": 16, "selector_top_k": 4, "draft_vocab_size": 4},
            "lm_head.weight",  # it reads the hidden state
        ),
    ],
    ids=["markov", "markov of its own place", "selector"],
)
def test_a_head_learns_what_follows_its_own_proposals(tmp_path, changes, silenced):
    """On a frozen backbone whose slots know nothing."""
    world = ChainWorld(answers=12)
    trainer = world.trainer(tmp_path, steps=24, learning_rate=0.05, freeze="backbone", **changes)
    torch.nn.init.zeros_(trainer.drafter.get_parameter(silenced))
    documents, features = trainer.corpus.held_out + trainer.corpus.training, trainer.features
    untrained, before = evaluate(trainer.drafter, world.view, documents, features), weights(trainer.drafter)
    trainer.train()
    trained = evaluate(trainer.drafter, world.view, documents, features)
    assert untrained.tau < 1.5 and trained.tau > 2.2
    for name, tensor in trainer.drafter.state_dict().items():
        assert torch.equal(tensor, before[name]) != name.startswith("head."), name


def test_the_tokens_of_a_reduced_head_are_the_frequent_ones_and_the_ends(world):
    documents = world.corpus().training
    found = frequent_tokens(world.view, documents, 12)
    assert torch.equal(found, frequent_tokens(world.view, documents, 12)) and found.tolist() == sorted(
        set(found.tolist())
    )
    counts = torch.bincount(torch.cat([each.ids[each.prompt_length :] for each in documents]), minlength=96)
    rest = torch.ones(96, dtype=torch.bool).index_fill(0, found, False)
    assert counts[found].min() >= counts[rest].max()
    assert covered(documents, found) == pytest.approx(float(counts[found].sum() / counts.sum()))
    rare = int(counts.argmin())
    world.target.generation_config.eos_token_id = [rare]
    try:
        assert rare in frequent_tokens(world.view, documents, 12)
    finally:
        world.target.generation_config.eos_token_id = None
    with pytest.raises(TrainingError, match="draft_vocab_size=96: .* has 96 tokens"):
        frequent_tokens(world.view, documents, 96)


def test_a_label_outside_a_reduced_head_is_a_rejected_slot(world, tmp_path):
    trainer = world.trainer(tmp_path, draft_vocab_size=30)
    vocabulary = trainer.drafter.vocabulary
    outside = next(token for token in range(8, 96) if token not in vocabulary)
    document = trainer.corpus.training[0]
    strange = replace(
        document, ids=document.ids.clone().index_fill(0, torch.arange(document.prompt_length, 16), outside)
    )
    counted = evaluate(trainer.drafter, world.view, [strange], trainer.features)
    assert set(counted.accepted[:2]) <= {0, 1} and counted.tau < 1.3


def test_a_reduced_head_has_the_targets_rows_and_is_scaled_by_nothing(world, tmp_path):
    drafter = starting_drafter(world.view, world.recipe(tmp_path, draft_vocab_size=30), world.corpus().training)
    rows = world.target.get_output_embeddings().weight[drafter.vocabulary]
    assert torch.equal(drafter.lm_head.weight, rows)
    assert drafter_scale(drafter.config, world.view).multiplier == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": "backbone"}, "leaves nothing to train"),
        ({"draft_vocab_size": 30, "sliding_window": 4}, "no layout could hold.*windows counted"),
        ({"draft_vocab_size": 30, "target_layer_ids": [0, 3]}, "no layout could hold.*last layer"),
    ],
)
def test_what_no_file_could_hold_is_said_before_work(world, tmp_path, changes, message):
    with pytest.raises(TrainingError, match=message):
        world.trainer(tmp_path, **changes)
    assert not list(tmp_path.iterdir())


def test_another_head_than_the_drafters_is_refused(world, tmp_path):
    world.trainer(tmp_path / "run", steps=1, head="markov", markov_rank=8).train()
    start = {"start_from": str(tmp_path / "run"), "num_hidden_layers": None}
    with pytest.raises(TrainingError, match="rank 8, not 4"):
        world.trainer(tmp_path / "a", head="markov", markov_rank=4, **start)
    with pytest.raises(TrainingError, match="has a markov head; leave head out"):
        world.trainer(tmp_path / "b", head="selector", **start)
    assert checkpoint.drafter_of_run(tmp_path / "run").config.head["rank"] == 8
