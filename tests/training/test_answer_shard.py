"""A shard's file has whole lines only, whatever ends a run, and one process at a time writes it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_hf.errors import TrainingError
from dflash_hf.training.answers import shard as answer_shard
from dflash_hf.training.answers.shard import AnswerShard

LINES = ['{"n": 1}\n', '{"n": "ö"}\n', '{"n": 3}\n']


@pytest.mark.parametrize("step", [3, 1 << 20])
def test_entering_cuts_off_what_a_kill_left_of_a_line(tmp_path: Path, step: int, monkeypatch):
    whole = "".join(LINES).encode()
    monkeypatch.setattr(answer_shard._whole, "__defaults__", (step,))
    for size in range(len(whole) + 1):
        with AnswerShard(tmp_path, 0, 1) as shard:
            shard.path.write_bytes(whole[:size])
        with AnswerShard(tmp_path, 0, 1) as shard:
            kept = shard.path.read_bytes()
            assert kept == b"".join(line for line in whole[:size].splitlines(keepends=True) if line.endswith(b"\n"))
            shard.append(LINES[:1])
            assert shard.path.read_bytes() == kept + LINES[0].encode()


def test_a_disk_that_is_full_leaves_what_was_there_before(tmp_path: Path):
    """The limit on file sizes stands for the disk: the write stops half way through a line, as on a full one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with AnswerShard(tmp_path, 0, 1) as shard:
        shard.append(LINES)
        size = shard.path.stat().st_size
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4, before[1]))
            with pytest.raises(TrainingError, match="the 3 answers that this run wrote before are safe") as raised:
                shard.append(LINES)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert raised.value.__cause__.errno == errno.EFBIG and shard.path.stat().st_size == size
        shard.append(LINES[:1])
    assert shard.path.read_text(encoding="utf-8") == "".join(LINES + LINES[:1])


def test_an_interrupt_while_writing_leaves_whole_lines(tmp_path: Path, monkeypatch):
    def interrupt(_file: int) -> None:
        raise KeyboardInterrupt

    with AnswerShard(tmp_path, 0, 1) as shard:
        shard.append(LINES[:1])
        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            shard.append(LINES)
        assert shard.path.read_text() == LINES[0]


HOLD = """
import sys
from pathlib import Path
from dflash_hf.training.answers.shard import AnswerShard
with AnswerShard(Path(sys.argv[1]), 0, 2):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_shard_is_held_by_one_process_and_let_go_when_it_is_killed(tmp_path: Path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(TrainingError, match=r"another process is writing .*00000-of-00002"),
            AnswerShard(tmp_path, 0, 2),
        ):
            pass
        with pytest.raises(TrainingError, match="shards of another count"), AnswerShard(tmp_path, 0, 1):
            pass
        with AnswerShard(tmp_path, 1, 2) as beside:
            beside.append(LINES)
    finally:
        other.kill()
        other.communicate()
    with AnswerShard(tmp_path, 0, 1) as alone:
        alone.append(LINES)


def test_what_on_start_raises_leaves_the_shard_free(tmp_path: Path):
    def refuse() -> None:
        raise TrainingError("made otherwise")

    with pytest.raises(TrainingError, match="made otherwise"), AnswerShard(tmp_path, 0, 1, on_start=refuse):
        pass
    assert not list(tmp_path.glob("answers-*"))
    with AnswerShard(tmp_path, 0, 1):
        pass


def test_a_folder_that_cannot_be_is_said_in_a_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(TrainingError, match="cannot write .*choose another folder"),
        AnswerShard(tmp_path / "file", 0, 1),
    ):
        pass
