"""The state of a run on disk: whole or not at all, and only for the run it belongs to."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading

import pytest
import torch

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import TrainingError
from dflash_hf.training import checkpoint
from dflash_hf.training.log import RunLog
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.signals import StopFlag
from tests.scripted import tiny_config
from tests.tiny import tiny_target

RECIPE = Recipe.of({"answers": ["a"], "output": "o", "steps": 9})
TARGET = ("a-target", "0123456789abcdef")


@pytest.fixture
def state():
    torch.manual_seed(0)
    drafter = DFlashDrafter(tiny_config(tiny_target()))
    return checkpoint.RunState(
        recipe=RECIPE.model_dump(mode="json"),
        target=TARGET,
        corpus="c0ffee",
        config=drafter.config.to_dict(),
        drafter=drafter.state_dict(),
        optimizers=[],
        step=4,
        seconds=1.5,
        tokens=99,
    )


def test_a_state_comes_back_as_it_was_written(tmp_path, state):
    assert checkpoint.read_state(tmp_path, RECIPE, TARGET, "c0ffee") is None
    checkpoint.write_state(tmp_path, state)
    back = checkpoint.read_state(
        tmp_path, RECIPE.changed(threads=3, save_minutes=1.0, output="elsewhere"), TARGET, "c0ffee"
    )
    assert (back.step, back.seconds, back.tokens) == (4, 1.5, 99)
    for name, weight in checkpoint.drafter_of_run(tmp_path).state_dict().items():
        assert torch.equal(weight, state.drafter[name])


@pytest.mark.parametrize(
    ("change", "target", "corpus", "message"),
    [
        ({"learning_rate": 0.5}, TARGET, "c0ffee", r"learning_rate \(0.0006 then, 0.5 now\).*start_from="),
        ({"steps": 10, "seed": 3}, TARGET, "c0ffee", "seed.*steps|steps.*seed"),
        ({}, TARGET, "other", "the answers"),
        ({}, ("b-target", "f00d"), "c0ffee", "the target .a-target then, b-target now"),
    ],
)
def test_another_run_is_refused_with_what_changed_and_the_way_on(tmp_path, state, change, target, corpus, message):
    checkpoint.write_state(tmp_path, state)
    before = (tmp_path / "state.pt").read_bytes()
    with pytest.raises(TrainingError, match=message):
        checkpoint.read_state(tmp_path, RECIPE.changed(**change), target, corpus)
    assert (tmp_path / "state.pt").read_bytes() == before


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("short write")])
def test_a_full_disk_keeps_the_state_before(tmp_path, state, monkeypatch, error):
    checkpoint.write_state(tmp_path, state)
    before = (tmp_path / "state.pt").read_bytes()

    def fill(_state, file):
        file.write(b"half")
        raise error

    monkeypatch.setattr(torch, "save", fill)
    with pytest.raises(TrainingError, match="step 4 could not be saved.*is kept"):
        checkpoint.write_state(tmp_path, state)
    assert (tmp_path / "state.pt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_a_file_that_is_no_state_is_named(tmp_path):
    (tmp_path / "state.pt").write_bytes(b"half a state")
    with pytest.raises(TrainingError, match="state.pt cannot be read"):
        checkpoint.read_state(tmp_path, RECIPE, TARGET, "c0ffee")


def test_a_log_is_cut_back_to_the_step_it_goes_on_from(tmp_path):
    log = RunLog(tmp_path, 0)
    for step in range(1, 6):
        log.write(step=step, loss=1.0 / step)
    with log.path.open("a") as file:
        file.write('{"step": 6, "lo')
    resumed = RunLog(tmp_path, 3)
    resumed.write(step=4, loss=0.0)
    assert [json.loads(line)["step"] for line in log.path.read_text().splitlines()] == [1, 2, 3, 4]
    RunLog(tmp_path, 0)
    assert log.path.read_text() == "", "a run from the beginning has a log from the beginning"


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="cannot write"):
        RunLog(tmp_path / "file", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_a_request_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with StopFlag() as stop:
        assert not stop.raised
        os.kill(os.getpid(), number)
        assert stop.raised
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_on_another_thread_signals_are_left_alone():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def enter():
        with StopFlag():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
