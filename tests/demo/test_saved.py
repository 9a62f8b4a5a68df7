"""Runs and traces as files: made here and read back, made elsewhere, and damaged in every way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_demo.pairs import Pairs
from dflash_demo.runs import Run
from dflash_demo.saved import read_run, saved_run
from dflash_demo.settings import Limits, Request
from dflash_demo.visitors import Ticket
from dflash_hf import Trace, TraceError, last_trace
from dflash_hf.bench.prompts import encode
from tests.cli.conftest import Files


@pytest.fixture(scope="module")
def run(pairs: Pairs) -> Run:
    run = Run(pairs, Ticket(Request("a walk to", max_new_tokens=20)), Limits())
    list(run.messages())
    return run


@pytest.fixture
def body(run: Run) -> dict:
    return json.loads(json.dumps(saved_run(run, "today")))


def written(folder: Path, body: object) -> Path:
    path = folder / "run.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def test_a_saved_run_is_replayed_without_a_pair(run: Run, body: dict, tmp_path: Path) -> None:
    found, told = read_run(written(tmp_path, body), None), run.story.message(whole=True)
    for key in ("prompt", "pair", "block", "probabilities", "count", "first", "drafted_run", "plain_run", "verdict"):
        assert found[key] == told[key], key
    for mine, live in zip(found["rounds"], told["rounds"], strict=True):
        assert {**mine, "at": 0, "ms": 0} == {**live, "at": 0, "ms": 0}
    assert found["run"] != told["run"]
    assert found["notice"]["text"] == "A recorded run, made today."


def test_a_saved_runs_trace_is_a_trace(body: dict, run: Run) -> None:
    assert Trace.from_dict(body["trace"]) == run.outcome.trace


def test_a_bare_trace_is_replayed_with_its_pair(run: Run, pairs: Pairs, tmp_path: Path) -> None:
    run.outcome.trace.to_json(tmp_path / "trace.json")
    found = read_run(tmp_path / "trace.json", pairs.get("auto"))
    told = run.story.message(whole=True)
    assert [round_["tokens"] for round_ in found["rounds"]] == [round_["tokens"] for round_ in told["rounds"]]
    assert found["plain_run"] is None and found["phase"] == "done"


def test_a_bare_trace_of_another_target_is_refused_by_name(run: Run, pairs: Pairs, tmp_path: Path) -> None:
    trace = {**run.outcome.trace.to_dict(), "target": "Qwen/Qwen3-8B"}
    with pytest.raises(TraceError, match="made with Qwen/Qwen3-8B, and this page has"):
        read_run(written(tmp_path, trace), pairs.get("auto"))
    with pytest.raises(TraceError, match="not loaded yet"):
        read_run(written(tmp_path, trace), None)


def test_a_trace_of_the_library_is_replayed_as_it_is(pairs: Pairs, files: Files, tmp_path: Path) -> None:
    """Its target is the model's own name, whatever the page calls it."""
    pair = pairs.get("auto")
    pair.model.generate(**encode(pair.tokenizer, "a walk to"), assistant=pair.drafter, max_new_tokens=9)
    trace = last_trace()
    trace.to_json(tmp_path / "trace.json")
    assert trace.target == files.target.name
    for name in (pair.names["target"], "A model (of four bits)"):
        named = replace(pair, names={**pair.names, "target": name})
        assert read_run(tmp_path / "trace.json", named)["count"] == 1 + len(trace.rounds)


def test_files_and_pages_say_no_folder_of_the_server(run: Run, body: dict, files: Files) -> None:
    said = json.dumps([body, run.story.message()])
    assert str(files.target.parent) not in said
    assert body["trace"]["target"] == body["pair"]["target"] == files.target.name
    assert body["trace"]["drafter"] == body["pair"]["drafter"] == files.drafter.name


def test_names_of_special_tokens_go_into_the_file(
    pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = pairs.get("auto").tokenizer("o")["input_ids"][-1]
    monkeypatch.setattr("dflash_demo.runs.special_names", lambda tokenizer: {said: "<|o|>", said + 1: "<|other|>"})
    run = Run(pairs, Ticket(Request("a walk to", max_new_tokens=9, plain=False)), Limits())
    told = list(run.messages())[-1]["rounds"]
    assert told[1]["tokens"][0][5:] == ["<|o|>"] and told[0]["tokens"][0][5:] == ["<|o|>"]
    body = json.loads(json.dumps(saved_run(run, "today")))
    assert body["specials"] == {str(said): "<|o|>"}
    found = read_run(written(tmp_path, body), None)["rounds"]
    assert [round_["tokens"] for round_ in found] == [round_["tokens"] for round_ in told]
    del body["specials"]  # of a file from before it
    assert read_run(written(tmp_path, body), None)["rounds"][0]["tokens"][0][5:] == []


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (Trace(rows=[Trace(first_token=1), Trace(first_token=2)]), r"a batch of 2 rows.*trace\.rows\[0\]\.to_json"),
        (Trace(fallback="it samples beams"), "nothing was drafted. it samples beams"),
        (Trace(), "has no token"),
    ],
)
def test_a_trace_with_nothing_to_show_is_refused_with_the_way_out(
    body: dict, tmp_path: Path, trace: Trace, said: str
) -> None:
    with pytest.raises(TraceError, match=said):
        read_run(written(tmp_path, trace.to_dict()), None)
    body.update(trace=trace.to_dict(), texts=[])
    with pytest.raises(TraceError, match=said):
        read_run(written(tmp_path, body), None)


@pytest.mark.parametrize("bytes_", [None, 0, 1_234_567])
def test_runs_and_traces_are_read_with_and_without_packed_weights(
    body: dict, run: Run, pairs: Pairs, tmp_path: Path, bytes_: int | None
) -> None:
    """The field is younger than the format."""
    for content in (body, body["trace"]):
        del body["trace"]["packed_bytes"]
        if bytes_ is not None:
            body["trace"]["packed_bytes"] = bytes_
        found = read_run(written(tmp_path, content), pairs.get("auto"))
        assert found["count"] == run.story.message()["count"]
        body["trace"]["packed_bytes"] = 0


def test_hostile_text_is_kept_as_text(body: dict, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)> ${40+2} {{value}} \\ \u202e\u200b"
    body["prompt"] = body["texts"][0]["tokens"][0] = hostile
    found = read_run(written(tmp_path, body), None)
    assert found["prompt"] == found["rounds"][0]["tokens"][0][0] == hostile


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body.update(schema="else/1"), "schema"),
        (lambda body: body.pop("texts"), "texts"),
        (lambda body: body["texts"].pop(), "rounds, texts of"),
        (lambda body: body["texts"][1]["tokens"].append("x"), "round 1 has texts of other tokens"),
        (lambda body: body["texts"][0].update(tokens=[7]), "texts.0.tokens.0"),
        (lambda body: body["trace"]["rounds"][0].update(accepted=99), "99 of them accepted"),
        (lambda body: body["trace"]["rounds"][0].update(accepted=-1), "-1 of them accepted"),
        (lambda body: body["trace"]["rounds"][0].update(round_ms="<b>"), "damaged"),
        (lambda body: body["trace"].update(extra=1), "extra"),
        (lambda body: body["verdict"].update(kind="lovely"), "verdict.kind"),
        (lambda body: body["plain_run"].update(tokens=-3), "plain_run.tokens"),
        (lambda body: body["pair"].update(evil="x"), "pair.evil"),
    ],
)
def test_a_damaged_run_is_refused_with_the_place(body: dict, tmp_path: Path, change, said: str) -> None:
    change(body)
    with pytest.raises(TraceError, match=said):
        read_run(written(tmp_path, body), None)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"a": NaN}', '{"a": 1e999}', "[" * 100_000, '"text"', "{}"]
)
def test_what_is_no_run_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(TraceError):
        read_run(written(tmp_path, content), None)


def test_numbers_a_browser_cannot_read_are_refused(body: dict, tmp_path: Path) -> None:
    body["drafted_run"]["seconds"] = float("inf")
    with pytest.raises(TraceError, match="not JSON"):
        read_run(written(tmp_path, body), None)


def test_a_time_that_no_float_holds_is_refused(body: dict, tmp_path: Path) -> None:
    body["trace"]["rounds"][0]["round_ms"] = 10**400
    with pytest.raises(TraceError, match="numbers are too large"):
        read_run(written(tmp_path, body), None)


@pytest.mark.parametrize(
    ("limit", "said"), [("MAX_TOKENS", "tokens in its answer"), ("MAX_DRAFTED", "in a round"), ("MAX_IDS", "token ids")]
)
def test_a_trace_that_would_keep_the_page_busy_is_refused(
    run: Run, pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, said: str
) -> None:
    monkeypatch.setattr(f"dflash_demo.saved.{limit}", 2)
    with pytest.raises(TraceError, match=f"{said}; this page shows up to 2"):
        read_run(written(tmp_path, run.outcome.trace.to_dict()), pairs.get("auto"))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_demo.saved.MAX_BYTES", 10)
    with pytest.raises(TraceError, match="reads up to 10"):
        read_run(written(tmp_path, "x" * 11), None)


@pytest.mark.parametrize("while_", ["drafting", "plain"])
def test_a_stopped_run_is_saved_as_far_as_it_went_and_replayed(pairs: Pairs, tmp_path: Path, while_: str) -> None:
    ticket = Ticket(Request("along the river a", max_new_tokens=200))
    run = Run(pairs, ticket, Limits())
    for told in run.messages():
        if told["phase"] == while_ and told["count"] > 2:
            ticket.stop()
    assert told["phase"] == "stopped"
    found = read_run(written(tmp_path, saved_run(run, "today")), None)
    assert found["phase"] == "stopped" and "stopped before its end" in found["notice"]["text"]
    assert [round_["tokens"] for round_ in found["rounds"]] == [round_["tokens"] for round_ in told["rounds"]]
    assert found["drafted_run"] == told["drafted_run"] and found["plain_run"] == told["plain_run"]
    assert (found["drafted_run"]["done"], len(found["rounds"]) > 2) == (while_ == "plain", True)


def test_a_run_that_made_no_round_has_nothing_to_save(pairs: Pairs) -> None:
    run = Run(pairs, Ticket(Request("")), Limits())
    list(run.messages())
    with pytest.raises(TraceError, match="made no round"):
        saved_run(run, "today")


def test_the_recorded_run_of_the_page_can_be_read() -> None:
    from dflash_demo.page import recorded_run

    message = recorded_run()
    assert message["verdict"]["kind"] == "identical" and message["count"] > 10
