"""Before the first step: whose answers they are, what is left out, and one decision for all processes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dflash_hf.errors import DFlashWarning, TrainingError
from dflash_hf.target.fingerprint import weights_fingerprint
from dflash_hf.target.view import view_target
from dflash_hf.training import prepare as module
from dflash_hf.training.documents import prompt_of
from dflash_hf.training.features.cache import Cached, FeatureCache
from dflash_hf.training.features.features import OnTheFly
from dflash_hf.training.features.fill import fill
from dflash_hf.training.prepare import prepare
from dflash_hf.training.run import Trainer
from tests.tiny import tiny_target
from tests.training.world import World, write

pytestmark = pytest.mark.filterwarnings("ignore:the mask token")  # random answers may hold it

IDS = {f"p-{number}" for number in range(12)}


@pytest.fixture(scope="module")
def world():
    return World(answers=12, new_tokens=12)


@pytest.fixture
def folder(world, tmp_path):
    """All answers of the world, as a folder."""
    return write(world, tmp_path / "answers", world.answers)


def alone(index: int = 0, count: int = 1):
    return SimpleNamespace(
        process_index=index,
        num_processes=count,
        is_main_process=index == 0,
        device=torch.device("cpu"),
        wait_for_everyone=lambda: None,
    )


def prepared(world, tmp_path, accelerator=None, **changes):
    said: list[str] = []
    recipe = world.recipe(tmp_path / "out", **changes)
    return prepare(world.view, recipe, accelerator or alone(), said.append), said, recipe


def test_prepare_gives_what_a_trainer_takes(world, tmp_path, folder):
    start, said, recipe = prepared(world, tmp_path, answers=str(folder), held_out=0, features="online", steps=1)
    assert len(start.corpus.training) == 12 and isinstance(start.features, OnTheFly) and start.state is None
    assert any("12 documents with" in line for line in said) and any("no τ will be given" in line for line in said)
    Trainer(world.view, recipe, start).train()
    again, _, _ = prepared(world, tmp_path, answers=str(folder), held_out=0, features="online", steps=1)
    assert again.state.step == 1
    assert torch.equal(again.drafter.fusion.fc.weight, start.drafter.fusion.fc.weight)


def test_another_target_is_refused_for_answers_and_for_a_resumed_run(world, tmp_path, folder):
    start, _, recipe = prepared(world, tmp_path, answers=str(folder), features="online", steps=1)
    Trainer(world.view, recipe, start).train()
    other = view_target(tiny_target("qwen3", seed=5))
    with pytest.raises(TrainingError, match="holds answers of tiny .* this target is"):
        prepare(other, recipe, alone(), print)
    write(world, tmp_path / "others", world.answers, weights=weights_fingerprint(other.model))
    with pytest.raises(TrainingError, match="the target .* then"):
        prepare(other, recipe.changed(answers=[str(tmp_path / "others")]), alone(), print)


def test_evaluation_sets_hold_no_prompt_that_is_trained_on(world, tmp_path, folder):
    more = World(answers=15, new_tokens=12).answers
    larger = write(world, tmp_path / "larger", more)
    start, said, _ = prepared(
        world, tmp_path, answers=str(folder), held_out=0, features="online", evaluation={"more": str(larger)}
    )
    assert sorted(document.id for document in start.evaluation["more"]) == ["p-12", "p-13", "p-14"]
    assert "evaluation set more: 12 of 15 answers left out, their prompts are trained on" in said
    with pytest.raises(TrainingError, match="none of its 12 answers can be used"):
        prepared(world, tmp_path, answers=str(folder), held_out=0, evaluation={"same": str(folder)})
    start, _, _ = prepared(
        world, tmp_path, answers=str(folder), held_out=0, features="online", evaluation={"more": str(larger)},
        evaluation_documents=2,
    )  # fmt: skip
    assert len(start.evaluation["more"]) == 2


def test_the_documents_of_an_evaluation_set_are_taken_by_their_prompts_not_by_their_ids(world, tmp_path, folder):
    """The same ones under any ids; a set of two sources gives some of each, not the first folder's."""
    more = [answer for answer in World(answers=36, new_tokens=12).answers if answer.id not in IDS]
    options = {"answers": str(folder), "held_out": 0, "features": "online", "evaluation_documents": 8}
    taken = []
    for number, names in enumerate((range(24), range(23, -1, -1))):
        sources = ["first"] * 12 + ["second"] * 12
        renamed = [
            replace(answer, id=f"q-{name:02d}", source=source)
            for answer, name, source in zip(more, names, sources, strict=True)
        ]
        other = write(world, tmp_path / f"set-{number}", renamed)
        start, _, _ = prepared(world, tmp_path, evaluation={"more": str(other)}, **options)
        taken.append(start.evaluation["more"])
        assert {document.source for document in taken[-1]} == {"first", "second"}
    assert [prompt_of(document) for document in taken[0]] == [prompt_of(document) for document in taken[1]]


def test_folders_may_share_ids_and_answers(world, tmp_path, folder):
    """The same answer counts once; another answer under the same id is kept under a new one."""
    changed = [replace(answer, answer_ids=answer.answer_ids[:-1]) for answer in world.answers[:3]]
    second = write(world, tmp_path / "second", [*changed, *world.answers[3:5]])
    start, said, _ = prepared(world, tmp_path, answers=[str(folder), str(second)], held_out=0, features="online")
    assert "2 answers left out: another folder has them too" in said
    ids = [document.id for document in start.corpus.training]
    assert len(ids) == len(set(ids)) == 15 and {"p-0@2", "p-1@2", "p-2@2"} <= set(ids)


def test_a_mask_token_that_the_text_has_is_warned_of(world, tmp_path, folder):
    token = int(world.answers[0].answer_ids[0])
    with pytest.warns(DFlashWarning, match=f"mask token {token} occurs"):
        prepared(world, tmp_path, answers=str(folder), features="online", mask_token_id=token)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"mask_form": "flex"}, "FlexAttention cannot train on a CPU"), ({"output": "/dev/null/out"}, "cannot write")],
)
def test_what_the_machine_cannot_do_is_said_before_the_target_runs(
    world, tmp_path, folder, monkeypatch, changes, message
):
    monkeypatch.setattr(module, "plan", lambda *args, **rest: pytest.fail("the target was timed"))
    recipe = world.recipe(tmp_path / "out", answers=str(folder)).changed(**changes)
    with pytest.raises(TrainingError, match=message):
        prepare(world.view, recipe, alone(), print)


def test_a_cache_is_filled_by_shares_and_read_by_all(world, tmp_path, folder, monkeypatch):
    """Each of two processes makes its half of the cache."""
    monkeypatch.setattr(module, "same_for_all", lambda _accelerator, value: value)
    options = {"answers": str(folder), "features": "cached", "held_out": 0}
    made = []
    for index in (0, 1):
        start, said, _ = prepared(world, tmp_path, alone(index, 2), **options)
        made += [line for line in said if "new)" in line]
    assert ["(6 new)" in line for line in made] == [True, True]
    assert isinstance(start.features, Cached) and len(FeatureCache(folder / "features")) == 12


def test_a_cache_that_lacks_layers_stands_in_the_way_of_no_run_that_need_not_read_it(world, tmp_path, folder):
    """online looks at none; auto goes on without it and says why; cached was asked for and refuses."""
    fill(world.view, world.corpus().training, folder / "features", [1], limit_bytes=10**9)
    options = {"answers": str(folder), "held_out": 0, "epochs": 3, "steps": None}
    start, said, _ = prepared(world, tmp_path, features="online", **options)
    assert isinstance(start.features, OnTheFly) and said[-1] == "chosen: on the fly, as asked"
    start, said, _ = prepared(world, tmp_path, features="auto", **options)
    assert isinstance(start.features, OnTheFly)
    assert said[-1].startswith("chosen: on the fly, ") and "layers 0, 2 are asked for" in said[-1]
    with pytest.raises(TrainingError, match="layers 0, 2 are asked for"):
        prepared(world, tmp_path, features="cached", **options)


def test_features_online_open_no_cache_at_all(world, tmp_path, folder):
    (folder / "features").mkdir()
    (folder / "features" / "features.json").write_text("{")
    start, _, _ = prepared(world, tmp_path, answers=str(folder), held_out=0, features="online")
    assert isinstance(start.features, OnTheFly)
