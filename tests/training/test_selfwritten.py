from __future__ import annotations

import errno
import json
import os
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_hf.errors import OptionsError, TrainingError
from dflash_hf.training.prompts.collecting import Wanted, collect
from dflash_hf.training.prompts.filters import Limits, Screen
from dflash_hf.training.prompts.request_log import RequestLog, WrittenRequest
from dflash_hf.training.prompts.selfwritten import Answerer, Writer, Writing, row_seed
from dflash_hf.training.prompts.sources import Source
from tests.training.chats import CHATML, MISTRAL, Scripted, chat_tokenizer


def view(ends: Any = None, rows: int = 400) -> Any:
    """Of a target the writer only needs its ends, ids and name: all else goes to the answerer."""
    config = SimpleNamespace(eos_token_id=ends)
    return SimpleNamespace(model=SimpleNamespace(generation_config=config), public_name="tiny", vocab_rows=rows)


TOKENIZER = chat_tokenizer(CHATML)


def writer(answer: Answerer | None = None, tokenizer: Any = TOKENIZER, **settings: Any) -> Writer:
    return Writer(view(), tokenizer, Writing(**settings), answer or Scripted(tokenizer))


def first(count: int, one: Writer, log: RequestLog | None = None) -> list[WrittenRequest]:
    return list(islice(one.requests(log), count))


def test_requests_depend_on_seed_and_number_alone() -> None:
    found = first(20, writer(batch_size=20, seed=3))
    assert [each.number for each in found] == list(range(20))
    assert first(20, writer(batch_size=7, seed=3)) == found
    assert found[5].text == Scripted(TOKENIZER).text(row_seed(3, 5)).strip() and not found[5].flaw
    others = first(20, writer(batch_size=20, seed=4))
    assert len({each.text for each in found + others}) == 40


def test_requests_begin_with_their_openings_in_turn() -> None:
    answer = Scripted(TOKENIZER)
    found = first(6, writer(answer, openings=("", "def ", "a walk"), batch_size=6))
    assert [each.text.split(" ")[0].rstrip("0123456789") for each in found] == ["", "def", "a", "", "def", "a"]
    assert answer.prompts[0].endswith("<|im_start|>user\n") and answer.prompts[1].endswith("user\ndef")
    assert answer.prompts[2].endswith("user\na walk") and not any(each.flaw for each in found)


def test_requests_say_why_one_cannot_be_used() -> None:
    def replies(*texts: str) -> Answerer:
        ends = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
        ids = [TOKENIZER(text)["input_ids"] for text in texts]
        return lambda *_, **__: [(each, each[-1] == ends) for each in ids]

    end = "<|im_end|>"
    texts = [" a" + end, "aults" + end, " a<|im_start|>b" + end, " a long", end, " " + end]
    found = first(6, writer(replies(*texts), openings=("def ",), batch_size=6, max_new_tokens=9))
    assert [each.flaw for each in found] == [
        "", "not as its opening", "special token inside", "not finished after 9 tokens", "not as its opening",
        "nothing after its opening",
    ]  # fmt: skip
    assert found[0].text == "def a"


def test_requests_end_where_a_template_without_a_mark_goes_on() -> None:
    tokenizer = chat_tokenizer(MISTRAL)
    ids = tokenizer(" a walk [/INST] Sure")["input_ids"]
    one = Writer(view(), tokenizer, Writing(batch_size=1), lambda *_, **__: [(ids, False)])
    assert first(1, one) == [WrittenRequest(0, "a walk", "")]


def test_writer_refuses_what_nothing_would_end() -> None:
    bare = chat_tokenizer("{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}")
    with pytest.raises(TrainingError, match="nothing ends a user's turn of tiny"):
        Writer(view(), bare, Writing(), Scripted(bare))
    assert Writer(view(ends=[5, 6]), bare, Writing(), Scripted(bare))
    with pytest.raises(TrainingError, match="ids below 50, its tokenizer ends a turn with"):
        Writer(view(rows=50), TOKENIZER, Writing(), Scripted(TOKENIZER))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0}, "would be the same"),
        ({"top_p": 0}, "top_p is above 0"),
        ({"openings": ()}, "need an opening"),
        ({"batch_size": 0}, "batch_size is at least 1"),
    ],
)
def test_writing_refuses_values_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        Writing(**settings)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("torn", [0, 1, 30])
def test_requests_killed_and_resumed_are_those_of_an_unbroken_run(tmp_path: Path, torn: int) -> None:
    path, whole = tmp_path / "p.partial", first(20, writer(batch_size=4))

    class Dies(Scripted):
        def __call__(self, *args: Any, **options: Any) -> Any:
            if len(self.calls) == 3:
                raise Killed
            return super().__call__(*args, **options)

    one = writer(Dies(TOKENIZER), batch_size=4)
    with pytest.raises(Killed):
        first(20, one, RequestLog(path, one.description()))
    if torn:
        path.write_bytes(path.read_bytes()[:-torn])
    answer = Scripted(TOKENIZER)
    again = writer(answer, batch_size=4)
    assert first(20, again, RequestLog(path, again.description())) == whole
    assert answer.calls == [4] * (3 if torn else 2), "a torn batch is written again, whole; others are not"
    numbers = [json.loads(line)["number"] for line in path.read_text().splitlines()[1:]]
    assert sorted(numbers) == list(range(20)), "no request lost or twice"
    last = Scripted(TOKENIZER)
    other_batches = writer(last, batch_size=10)
    assert first(20, other_batches, RequestLog(path, other_batches.description())) == whole and last.calls == []


def test_request_log_of_other_settings_is_refused_or_begun_anew(tmp_path: Path) -> None:
    path, one, other = tmp_path / "p.partial", writer(batch_size=4), writer(batch_size=4, seed=1)
    first(4, one, RequestLog(path, one.description()))
    with pytest.raises(OptionsError, match=r"unfinished run with another seed; .* --force"):
        RequestLog(path, other.description())
    assert path.exists()
    assert RequestLog(path, other.description(), anew=True).read() == {}
    path.write_text('{"a": 1}\n')
    with pytest.raises(OptionsError, match="is not a file of unfinished requests"):
        RequestLog(path, one.description())


def test_request_log_on_a_full_disk_says_so_and_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, one = tmp_path / "p.partial", writer(batch_size=4)
    first(4, one, RequestLog(path, one.description()))
    with monkeypatch.context() as patched:

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patched.setattr(os, "fsync", full)
        with pytest.raises(TrainingError, match="No space left on device; what was written before is kept"):
            first(8, one, RequestLog(path, one.description()))
    assert first(8, one, RequestLog(path, one.description())) == first(8, writer(batch_size=4))


def test_collect_takes_requests_until_enough_pass_the_screen(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    texts = [each.text for each in first(10, writer())]
    path.write_text(json.dumps(texts[3]) + "\n")
    screen = Screen(Limits())
    found = collect([Source(str(path))], screen, Wanted(writer(batch_size=4), 6), seed=1)
    ids = [each.id for each in found.prompts]
    assert sorted(ids) == ["p-1", *(f"self-0-{number}" for number in (0, 1, 2, 4, 5, 6))] and ids != sorted(ids)
    assert screen.dropped == {"duplicate": 1} and [tally.rows for tally in found.tallies] == [1, 7]
    again = collect([Source(str(path))], Screen(Limits()), Wanted(writer(batch_size=3), 6), seed=1, limit=4)
    assert [each.id for each in again.prompts] == ids[:4] and again.over_limit == 3
    other = collect([Source(str(path))], Screen(Limits()), Wanted(writer(batch_size=3), 6), seed=2)
    assert [each.id for each in other.prompts] != ids


def test_collect_gives_up_when_nearly_all_requests_are_dropped() -> None:
    screen = Screen(Limits())
    with pytest.raises(TrainingError, match=r"of 220 requests .* only 0 can be used, 1 are wanted \(220 not finished"):
        collect([], screen, Wanted(writer(max_new_tokens=1), 1))


def test_collect_says_why_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('" "\n" "\n"abc"\n')
    with pytest.raises(TrainingError, match="no prompt is left of 3 rows: 2 empty, 1 under 4 characters"):
        collect([Source(str(path))], Screen(Limits(min_chars=4)))
