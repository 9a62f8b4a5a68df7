"""Answers on disk: what is written comes back; what was torn counts for nothing; what is damaged is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_hf.errors import TrainingError
from dflash_hf.training.answers.answers import Answer, AnswerFolder, shard_name

ANSWERS = [
    Answer("b/0", [5, 6], [7, 8, 2], True, "gsm8k.jsonl", 0.7, 123),
    Answer("a", [5], [9], False, "gsm8k.jsonl", 0.0, 0),
    Answer("c", [5], [2], True, "target", 0.0, 0),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / shard_name(0, 2)).write_text(ANSWERS[0].to_line("zwölf\nStühle") + ANSWERS[1].to_line(""), "utf-8")
    (tmp_path / shard_name(1, 2)).write_text(ANSWERS[2].to_line(""), "utf-8")
    return tmp_path


def test_answers_come_back_by_id_whichever_shard_has_them(folder: Path):
    found = AnswerFolder(folder).read()
    assert found == [ANSWERS[1], ANSWERS[0], ANSWERS[2]]
    assert [answer.empty for answer in found] == [False, False, True]
    assert AnswerFolder(folder).ids() == {"a", "b/0", "c"}


def test_a_row_is_one_line_with_the_text_for_people(folder: Path):
    first = (folder / shard_name(0, 2)).read_text("utf-8").split("\n")[0]
    assert json.loads(first)["text"] == "zwölf\nStühle" and "zwölf" in first


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_torn_last_line_counts_for_nothing(folder: Path, cut: int):
    path = folder / shard_name(1, 2)
    path.write_bytes(path.read_bytes()[:-cut])
    assert AnswerFolder(folder).ids() == {"a", "b/0"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken\n", "line 2 is not JSON"),
        ("[]\n", "line 2 is no answer"),
        (json.dumps({"id": "x", "prompt_ids": [1], "answer_ids": [], "ended": True}) + "\n", "answer_ids, source"),
        (ANSWERS[0].to_line("") + "\n", "'b/0' is in .* twice"),
    ],
)
def test_what_is_damaged_or_there_twice_is_named(folder: Path, line: str, message: str):
    with (folder / shard_name(1, 2)).open("a", encoding="utf-8") as file:
        file.write(line)
    with pytest.raises(TrainingError, match=message):
        AnswerFolder(folder).read()


def test_a_folder_without_answers_says_how_to_make_some(tmp_path: Path):
    with pytest.raises(TrainingError, match="data regenerate"):
        AnswerFolder(tmp_path / "nothing").read()
    with pytest.raises(TrainingError, match="data regenerate"):
        AnswerFolder(tmp_path).description  # noqa: B018 - a property that raises
    (tmp_path / "answers.json").write_text('{"target": "of an older version"}')
    with pytest.raises(TrainingError, match="schema None"):
        AnswerFolder(tmp_path).description  # noqa: B018
    (tmp_path / "answers.json").write_text("{")
    with pytest.raises(TrainingError, match="cannot be read"):
        AnswerFolder(tmp_path).description  # noqa: B018
