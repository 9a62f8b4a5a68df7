from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dflash_hf.errors import OptionsError
from dflash_hf.training.prompts.rows import Row, conversation, file_rows, user_prompts

HELLO = [{"role": "user", "content": "Hello"}]


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Hello", HELLO),
        ({"question": "Hello", "answer": "4"}, HELLO),
        ({"prompt": "Hello"}, HELLO),
        ({"prompt": HELLO}, HELLO),
        ({"question": "", "prompt": "Hello"}, HELLO),
        ({"turns": ["Hello", "Again"]}, turns(("user", "Hello"), ("user", "Again"))),
        ({"messages": HELLO}, HELLO),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}, HELLO),
        (
            {"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Yes?"}]},
            turns(("user", "Hello"), ("assistant", "Yes?")),
        ),
    ],
)
def test_conversation_knows_the_usual_fields(value, expected) -> None:
    assert conversation(Row("f, line 1", "1", value)) == expected


def test_conversation_takes_the_field_that_is_named() -> None:
    row = Row("f, line 3", "3", {"prompt": "no", "instruction": "Hello", "score": 2})
    assert conversation(row, "instruction") == HELLO
    with pytest.raises(OptionsError, match=r"f, line 3 has no field 'task'; it has instruction, prompt, score"):
        conversation(row, "task")
    with pytest.raises(OptionsError, match="line 3 .* neither a text nor a list of turns, but 2"):
        conversation(row, "score")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"text": "x"}, "it has text; name the right one with #FIELD"),
        ({}, "it is empty"),
        (3, "has no prompt but 3"),
        ({"messages": [{"speaker": "a"}]}, "a turn with the fields speaker"),
        ({"messages": [{"role": "user", "content": 3}]}, "content is 3, not a text"),
        ({"messages": ["a", {"role": "user"}]}, "neither a text nor a list of turns"),
    ],
)
def test_conversation_says_where_and_what_it_does_not_know(value, words) -> None:
    with pytest.raises(OptionsError, match=f"f, line 7 .*{words}"):
        conversation(Row("f, line 7", "7", value))


def test_user_prompts_gives_every_turn_with_what_was_said_before() -> None:
    said = turns(("system", "Be brief"), ("assistant", "lost"), ("user", "a"), ("assistant", "b"), ("user", "c"))
    system, _, first, answer, second = said
    assert user_prompts(said) == [(system, first)]
    assert user_prompts(said, every=True) == [(system, first), (system, first, answer, second)]


@pytest.mark.parametrize(
    "after",
    [
        [("user", "b"), ("assistant", "c")],  # MT-bench: no answer between
        [("assistant", " "), ("user", "c")],
        [("tool", "42"), ("assistant", "c"), ("user", "d")],
        [("system", "new rules"), ("assistant", "c"), ("user", "d")],
    ],
)
def test_user_prompts_stops_where_turns_are_not_taken(after) -> None:
    assert user_prompts(turns(("user", "a"), *after), every=True) == [tuple(turns(("user", "a")))]


def test_user_prompts_has_none_without_a_user_or_with_a_picture() -> None:
    picture = [{"role": "user", "content": [{"type": "image", "url": "x"}, {"type": "text", "text": "What is it?"}]}]
    assert user_prompts(conversation(Row("f", "1", {"messages": picture}))) == []
    assert user_prompts(turns(("assistant", "a"))) == []


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz"])
@pytest.mark.parametrize("array", [False, True])
def test_file_rows_reads_lines_and_arrays(tmp_path: Path, name: str, array: bool) -> None:
    rows = [{"id": "x7", "prompt": "a"}, {"task_id": "T/1", "prompt": "b"}, {"prompt": "c"}]
    text = json.dumps(rows, indent=1) if array else "\n".join(map(json.dumps, rows)) + "\n\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else b"\xef\xbb\xbf" + text.encode())
    found = list(file_rows(path))
    assert [row.value for row in found] == rows
    assert [row.name for row in found] == ["x7", "T/1", "3"]
    assert found[1].where == f"{path}, {'item' if array else 'line'} 2"


def test_file_rows_names_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('"a"\n{\n')
    with pytest.raises(OptionsError, match=r"p.jsonl, line 2 is not JSON"):
        list(file_rows(path))
    cut = tmp_path / "p.jsonl.gz"
    cut.write_bytes(gzip.compress(b'"a"\n' * 1000)[:-20])
    for unreadable in (cut, tmp_path / "gone.jsonl", tmp_path):
        with pytest.raises(OptionsError, match="cannot read prompts from"):
            list(file_rows(unreadable))
