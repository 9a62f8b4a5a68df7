from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dflash_hf.errors import HubError, OptionsError
from dflash_hf.training.prompts.collecting import collect
from dflash_hf.training.prompts.filters import Limits, Screen
from dflash_hf.training.prompts.sources import (
    DatasetSpec,
    Source,
    Tally,
    dataset_spec,
    evaluation_texts,
    source_prompts,
)

TALK = [
    {"from": "human", "value": "a"},
    {"from": "gpt", "value": "b"},
    {"from": "human", "value": "c"},
    {"from": "gpt", "value": "d"},
]


def write(path: Path, *rows: object) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_source_prompts_of_transcripts_are_the_first_turn_or_all(tmp_path: Path) -> None:
    path = write(tmp_path / "talks.jsonl", {"id": "x/1", "conversations": TALK}, {"turns": ["e", "f"]})
    tally = Tally("talks.jsonl")
    found = list(source_prompts(Source(path), tally))
    assert [(each.id, each.text) for each in found] == [("talks-x-1", "a"), ("talks-2", "e")]
    found = list(source_prompts(Source(path, every_turn=True), tally))
    assert [each.id for each in found] == ["talks-x-1", "talks-x-1-turn2", "talks-2"]
    assert [turn["content"] for turn in found[1].messages] == ["a", "b", "c"]
    assert {each.source for each in found} == {"talks.jsonl"} and tally == Tally("talks.jsonl", 4, 5)


def test_source_prompts_takes_prompts_of_ours_as_they_stand(tmp_path: Path) -> None:
    said = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    path = write(tmp_path / "p.jsonl", {"id": "self-0-1", "messages": said, "source": "target"})
    for every in (False, True):
        (found,) = source_prompts(Source(path, every_turn=every), Tally(""))
        assert (found.id, list(found.messages), found.source) == ("self-0-1", said, "target")


def test_source_prompts_reads_a_named_field_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "set.jsonl", {"task": "a"}, {"task": "b"})
    assert [each.text for each in source_prompts(Source(path + "#task"), Tally(""))] == ["a", "b"]
    assert Source(path + "#task").label == "set.jsonl"
    with pytest.raises(OptionsError, match="set.jsonl, line 1 has no prompt.*it has task; name the right one"):
        list(source_prompts(Source(path), Tally("")))
    marked = write(tmp_path / "odd#name", "a")
    assert [each.text for each in source_prompts(Source(marked), Tally(""))] == ["a"]


def test_evaluation_texts_are_all_that_users_say(tmp_path: Path) -> None:
    path = write(tmp_path / "e.jsonl", {"turns": ["a", "b"]}, {"conversations": TALK}, {"question": "q"})
    assert list(evaluation_texts(Source(path))) == ["a", "b", "a", "c", "q"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:squad", DatasetSpec("squad")),
        ("hf:o/n", DatasetSpec("o/n")),
        ("hf:o/n:test", DatasetSpec("o/n", None, "test")),
        ("hf:o/n/c:train[:10]#q", DatasetSpec("o/n", "c", "train[:10]", "q")),
        ("hf:o/n#q", DatasetSpec("o/n", None, "train", "q")),
    ],
)
def test_dataset_spec_reads_every_part(text: str, expected: DatasetSpec) -> None:
    assert dataset_spec(text) == expected


@pytest.mark.parametrize("text", ["hf:", "hf:a/b/c/d", "hf:o/n:", "hf:o/n#", "hf:o//c"])
def test_dataset_spec_refuses_what_is_none(text: str) -> None:
    with pytest.raises(OptionsError, match="is not hf:owner/name"):
        dataset_spec(text)


class Rows(list):  # what a data set does that we use
    read = 0

    def shuffle(self, *, seed: int, buffer_size: int) -> Rows:
        assert buffer_size == 20
        return Rows(self[::-1]) if seed else self

    def __iter__(self) -> Iterator[object]:
        for row in super().__iter__():
            Rows.read += 1
            yield row


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """A stand-in for the package ``datasets``; the calls of load_dataset."""
    calls: list[tuple[object, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str, streaming: bool) -> Rows:
        calls.append((name, config, split, streaming))
        if split == "gone":
            raise ValueError('Unknown split "gone". Should be one of train.\nmore')
        return Rows({"task": f"task {number}", "question": f"question {number}"} for number in range(50))

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(Rows, "read", 0)
    return calls


def test_source_prompts_reads_a_data_set(datasets: list[tuple[object, ...]]) -> None:
    found = list(source_prompts(Source("hf:o/n/c:test#task"), Tally("")))
    assert (found[0].id, found[0].text, found[0].source, len(found)) == ("n-1", "task 0", "o/n", 50)
    assert next(source_prompts(Source("hf:o/n"), Tally(""))).text == "question 0"
    assert datasets == [("o/n", "c", "test", False), ("o/n", None, "train", False)]


def test_source_prompts_streams_a_data_set_when_few_are_wanted(datasets: list[tuple[object, ...]]) -> None:
    prompts = source_prompts(Source("hf:o/n", wanted=2, seed=1), Tally(""))
    assert [next(prompts).text for _ in range(3)] == ["question 49", "question 48", "question 47"]
    assert datasets == [("o/n", None, "train", True)] and Rows.read == 3
    assert len(list(source_prompts(Source("hf:o/n:train[:50]", wanted=2), Tally("")))) == 50
    assert datasets[1:] == [("o/n", None, "train[:50]", False)], "a slice cannot be streamed"


def test_collect_stops_a_stream_when_enough_are_kept(datasets: list[tuple[object, ...]]) -> None:
    sources = [Source(text, wanted=2, seed=1) for text in ("hf:o/n#question", "hf:o/n#task")]
    found = collect(sources, Screen(Limits(min_chars=7)), limit=2)
    assert len(found.prompts) == 2 and found.over_limit == 2 and Rows.read == 4
    assert [(tally.rows, tally.kept) for tally in found.tallies] == [(2, 2), (2, 2)]


def test_source_prompts_says_what_is_wrong_with_a_data_set(datasets: list[tuple[object, ...]]) -> None:
    with pytest.raises(OptionsError, match="hf:o/n:train, row 1 has no field 'text'; it has question, task"):
        next(source_prompts(Source("hf:o/n#text"), Tally("")))
    with pytest.raises(HubError, match=r"cannot read the data set o/n \(gone\): Unknown split .* one of train.$"):
        next(source_prompts(Source("hf:o/n:gone"), Tally("")))


def test_source_prompts_names_the_extra_when_datasets_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(OptionsError, match=r"hf:o/n needs the package datasets: pip install 'dflash-hf\[train\]'"):
        next(source_prompts(Source("hf:o/n"), Tally("")))
