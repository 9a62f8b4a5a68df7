"""numbers.js against ``Trace.metrics``: the same rounds, the same figures, at every round of a replay."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from dflash_hf.trace import RoundRecord, Trace

SAME = {  # a figure of the view: its name in the trace
    "steps": "num_spec_steps",
    "drafted": "num_draft_tokens",
    "accepted": "num_accepted_draft_tokens",
    "histogram": "acceptance_histogram",
    "tau": "tau",
    "acceptance": "draft_acceptance_rate",
    "byPosition": "acceptance_by_position",
    "conditional": "conditional_acceptance_by_position",
}


@pytest.fixture(scope="module")
def blank(chromium: Any) -> Iterator[Any]:
    page = chromium.new_page()
    page.add_script_tag(content=(files("dflash_demo.view") / "numbers.js").read_text(encoding="utf-8"))
    yield page
    page.close()


def random_trace(seed: int) -> Trace:
    luck = random.Random(seed)
    rounds = []
    for _ in range(luck.randrange(0, 40)):
        drafted = luck.choice([0, 1, 3, 7, 7, 7])
        accepted = luck.randint(0, drafted)
        ended = accepted > 0 and luck.random() < 0.1
        rounds.append(RoundRecord(list(range(drafted)), accepted, None if ended else 9, cut=ended, round_ms=40.0))
    return Trace(first_token=1, rounds=rounds, prefill_ms=100.0)


def as_message(trace: Trace) -> list[dict[str, Any]]:
    records = [RoundRecord([], 0, trace.first_token, round_ms=trace.prefill_ms), *trace.rounds]
    at, rounds = 0.0, []
    for number, record in enumerate(records):
        at += record.round_ms / 1e3
        rounds.append({"n": number, "drafted": len(record.drafted), "accepted": record.accepted, "at": at,
                       "tokens": [["t"]] * record.committed, "ms": [1, 2, 3, record.round_ms]})  # fmt: skip
    return rounds


@pytest.mark.parametrize("seed", range(12))
def test_figures_equal_those_of_the_trace_at_every_round(blank: Any, seed: int) -> None:
    trace = random_trace(seed)
    rounds = as_message(trace)
    figures = blank.evaluate("rounds => rounds.map((_, last) => figuresAt(rounds, last))", rounds)
    for last, seen in enumerate(figures):
        metrics = Trace(first_token=1, rounds=trace.rounds[:last]).metrics()
        for ours, theirs in SAME.items():
            assert seen[ours] == pytest.approx(metrics[theirs]), (ours, last)
        assert seen["tokens"] == len(Trace(first_token=1, rounds=trace.rounds[:last]).tokens)


def test_figures_of_no_round_are_unknown_not_zero(blank: Any) -> None:
    seen = blank.evaluate("figuresAt([], -1)")
    assert seen["tau"] is seen["acceptance"] is seen["rate"] is seen["times"] is None
    assert seen["histogram"] == [] and seen["tokens"] == 0


def test_race_stands_where_both_runs_were_at_the_same_moment(blank: Any) -> None:
    lanes = blank.evaluate("raceAt({tokens: 30, seconds: 1}, 2, 60, 15)")
    assert lanes == {"drafted": 0.5, "plain": 0.25}
    slower = blank.evaluate("raceAt({tokens: 60, seconds: 2}, 2, 60, 60)")
    assert slower == {"drafted": 0.5, "plain": 1}
