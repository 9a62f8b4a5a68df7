"""What the weights a run starts from have seen: left out of τ where it is known, said where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_hf.errors import DFlashWarning
from dflash_hf.training.checkpoint import RunState, write_state
from dflash_hf.training.documents import corpus_of, fingerprint, prompt_of
from dflash_hf.training.gather import gather
from dflash_hf.training.origin import Origin
from tests.training.world import World, write


@pytest.fixture(scope="module")
def world() -> World:
    return World(answers=40, new_tokens=8)


@pytest.fixture
def earlier(world, tmp_path) -> Path:
    """Answers of a run before this one: the first thirty."""
    return write(world, tmp_path / "earlier", world.answers[:30])


def run(world, folder: Path, answers: Path, held_out: int, **changes) -> Path:
    """The folder of a run that trained on these answers; its weights do not matter here."""
    recipe = world.recipe(folder, answers=[str(answers)], held_out=held_out, **changes)
    answers_read = sorted(world.answers[:30], key=lambda answer: answer.id)
    documents = corpus_of(answers_read, max_length=recipe.max_length, held_out=held_out).training
    folder.mkdir()
    state = RunState(recipe.model_dump(mode="json"), ("tiny", "0"), fingerprint(documents), {}, {}, [], 1, 0.0, 0)
    write_state(folder, state)
    return folder


def gathered(world, tmp_path, start: Path | str, answers: Path, held_out: int, evaluation: Path | None = None):
    said: list[str] = []
    sets = {} if evaluation is None else {"more": str(evaluation)}
    recipe = world.recipe(
        tmp_path / "out", answers=[str(answers)], start_from=str(start), held_out=held_out, evaluation=sets
    )
    return gather(world.view, recipe, said.append), said


def test_nothing_is_measured_on_prompts_that_an_earlier_run_is_known_to_have_trained_on(world, tmp_path, earlier):
    """Of all forty answers held out and of an evaluation set, only what the run on the first thirty never saw."""
    first = run(world, tmp_path / "first", earlier, held_out=0)
    everything = write(world, tmp_path / "all", world.answers)
    seen = {prompt_of(document) for document in corpus_of(world.answers[:30], max_length=64, held_out=0).training}
    whole = corpus_of(world.answers, max_length=64, held_out=2).held_out
    expected = [document.id for document in whole if prompt_of(document) not in seen]
    assert 0 < len(expected) < len(whole)
    found, said = gathered(world, tmp_path, first, everything, held_out=2)
    assert [document.id for document in found.corpus.held_out] == expected
    assert f"{len(whole) - len(expected)} held-out answers are left out: first was trained on their prompts" in said
    assert found.origin.name == "first" and found.origin.uncompared == ()
    some = write(world, tmp_path / "some", world.answers[25:])
    others = write(world, tmp_path / "others", world.answers[:20])
    found, _ = gathered(world, tmp_path, first, others, held_out=0, evaluation=some)
    assert {document.id for document in found.evaluation["more"]} <= {f"p-{number}" for number in range(30, 40)}


def test_a_drafter_that_a_run_wrote_is_that_runs(world, tmp_path, earlier):
    first = run(world, tmp_path / "first", earlier, held_out=0)
    (first / "drafter").mkdir()
    found, _ = gathered(world, tmp_path, first / "drafter", earlier, held_out=2)
    assert found.corpus.held_out == [] and (found.origin.name, found.origin.complete) == ("drafter", True)


@pytest.mark.parametrize(
    ("then", "now", "apart"), [(3, 3, True), (2, 4, True), (3, 4, False), (4, 2, False), (0, 2, False)]
)
def test_without_the_earlier_answers_the_same_split_is_as_good(world, tmp_path, earlier, recwarn, then, now, apart):
    """What every 4th prompt holds out, every 2nd held out before; the other way round it may have been trained on."""
    first = run(world, tmp_path / "first", earlier, held_out=then)
    earlier = earlier.rename(tmp_path / "moved")
    found, said = gathered(world, tmp_path, first, earlier, held_out=now)
    warned = [str(warning.message) for warning in recwarn if issubclass(warning.category, DFlashWarning)]
    if apart:
        assert found.origin.uncompared == () and not warned
        return
    assert found.origin.uncompared == ("held_out",)
    (message,) = warned
    assert f"first was trained with held_out={then}, this run has held_out={now}" in message


@pytest.mark.filterwarnings("ignore:first was trained with")
def test_answers_that_changed_since_are_not_taken_for_those_trained_on(world, tmp_path, earlier):
    first = run(world, tmp_path / "first", earlier, held_out=0)
    shard = earlier / "answers-00000-of-00001.jsonl"
    shard.write_text("".join(shard.read_text().splitlines(keepends=True)[1:]))
    found, _ = gathered(world, tmp_path, first, earlier, held_out=2)
    assert found.origin == Origin("first", frozenset(), False, (0,), ("held_out",))
    assert found.corpus.held_out


def test_of_a_drafter_without_its_run_nothing_is_known_and_that_is_said(world, tmp_path, earlier):
    some = write(world, tmp_path / "some", world.answers[30:])
    found, said = gathered(world, tmp_path, "owner/drafter", earlier, held_out=3, evaluation=some)
    assert found.origin == Origin("owner/drafter", uncompared=("held_out", "more"))
    assert said[-1] == "not known: whether owner/drafter was trained on prompts of held_out, more"


def test_a_run_knows_no_more_than_what_it_started_from(world, tmp_path, earlier):
    run(world, tmp_path / "first", earlier, held_out=3)
    second = run(world, tmp_path / "second", earlier, held_out=3, start_from=str(tmp_path / "first"))
    found, _ = gathered(world, tmp_path, second, earlier, held_out=3)
    assert found.origin.uncompared == () and found.origin.held_out == (3, 3)
    third = run(world, tmp_path / "third", earlier, held_out=3, start_from="owner/drafter")
    found, said = gathered(world, tmp_path, third, earlier, held_out=3)
    assert found.origin.uncompared == ("held_out",) and found.origin.prompts, "what it trained on itself is known"
    assert said[-1].startswith("not known: whether third was trained on")


def test_a_new_drafter_has_no_origin(world, tmp_path, earlier):
    found, _ = gathered(world, tmp_path, "", earlier, held_out=3)
    assert found.origin is None
