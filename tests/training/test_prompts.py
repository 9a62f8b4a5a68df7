from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from dflash_hf.errors import OptionsError, TrainingError
from dflash_hf.training.prompts.prompts import Prompt, distinct, read_prompts, write_prompts


def prompt(name: str, *texts: str) -> Prompt:
    roles = ["user", "assistant"] * len(texts)
    said = tuple({"role": role, "content": text} for role, text in zip(roles, texts, strict=False))
    return Prompt(name, said, "target")


def test_read_prompts_gives_what_was_written(tmp_path: Path) -> None:
    written = [prompt("self-0-1", "Ärger\n\u2028 über α?"), prompt("x", "a", "b", "c")]
    write_prompts(tmp_path / "p.jsonl", written)
    assert read_prompts(tmp_path / "p.jsonl") == written
    assert json.loads((tmp_path / "p.jsonl").read_text().split("\n")[1])["messages"][2]["content"] == "c"


def test_read_prompts_takes_other_layouts_and_makes_ids_distinct(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    rows = [{"task_id": "T/1", "prompt": "a"}, {"task_id": "T/1", "turns": ["b", "c"]}, "d"]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_prompts(path)
    assert [each.id for each in found] == ["set-T-1", "set-T-1.2", "set-3"]
    assert [each.text for each in found] == ["a", "b", "d"] and {each.source for each in found} == {"set.jsonl"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('"a"\n{"question": " "}\n', "line 2 has an empty prompt"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "line 1 has an empty prompt"),
        ('{"id": "1", "source": "s", "messages": [{"role": "assistant", "content": "a"}]}', "end with a user turn"),
        ("\n", "holds no prompts"),
    ],
)
def test_read_prompts_names_the_line_it_cannot_use(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(content)
    with pytest.raises(OptionsError, match=words):
        read_prompts(path)


def test_write_prompts_on_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.jsonl"
    write_prompts(path, [prompt("old", "a")])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingError, match="No space left on device; nothing of it was written"):
        write_prompts(path, [prompt("new", "b")])
    assert [each.id for each in read_prompts(path)] == ["old"]
    assert os.listdir(tmp_path) == ["p.jsonl"]


def test_distinct_counts_up_past_names_that_are_taken() -> None:
    names = ["a", "a.2", "a", "b", "a"]
    found = distinct(prompt(name, str(number)) for number, name in enumerate(names))
    assert [each.id for each in found] == ["a", "a.2", "a.3", "b", "a.4"]
    assert [each.text for each in found] == ["0", "1", "2", "3", "4"]
