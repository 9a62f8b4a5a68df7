"""Counts against a hand-made run; JSON there and back; damage is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_hf.errors import TraceError
from dflash_hf.trace import RoundRecord, Trace, merge_metrics

ROUNDS = [
    RoundRecord([5, 6, 7], accepted=3, bonus=8),
    RoundRecord([9, 9, 9], accepted=0, bonus=4),
    RoundRecord([], accepted=0, bonus=2),  # width 0: plain decoding
    RoundRecord([3, 1], accepted=1, bonus=None, cut=True),
]


def test_metrics_of_a_run_by_hand():
    metrics = Trace(first_token=1, rounds=ROUNDS).metrics()
    assert metrics["num_spec_steps"] == 3 and metrics["num_plain_steps"] == 1
    assert metrics["num_draft_tokens"] == 8 and metrics["num_accepted_draft_tokens"] == 4
    assert metrics["tau"] == pytest.approx((4 + 1 + 1) / 3)
    assert metrics["tau_uncut"] == pytest.approx((4 + 1) / 2)
    assert metrics["mean_acceptance_length"] == pytest.approx(1 + 4 / 3)
    assert metrics["draft_acceptance_rate"] == 0.5
    assert metrics["acceptance_histogram"] == [1, 1, 0, 1]
    assert metrics["acceptance_histogram_by_draft_length"] == {"3": [1, 0, 0, 1], "2": [0, 1, 0]}
    assert metrics["acceptance_by_position"] == pytest.approx([2 / 3, 1 / 3, 1 / 2])
    assert metrics["conditional_acceptance_by_position"] == pytest.approx([2 / 3, 1 / 2, 1.0])


def test_nothing_drafted_has_no_figures():
    metrics = merge_metrics([Trace(rounds=[RoundRecord([], 0, 2)]), Trace()])
    assert metrics["tau"] is None and metrics["draft_acceptance_rate"] is None
    assert metrics["acceptance_histogram"] == [] and metrics["num_plain_steps"] == 1


def test_tokens_are_the_prefills_then_each_rounds():
    assert Trace(first_token=1, rounds=ROUNDS).tokens == [1, 5, 6, 7, 8, 4, 2, 3]


rounds = st.lists(st.integers(0, 9), max_size=5).flatmap(
    lambda drafted: st.builds(
        RoundRecord,
        drafted=st.just(drafted),
        accepted=st.integers(0, len(drafted)),
        bonus=st.one_of(st.none(), st.integers(0, 9)),
        cut=st.booleans(),
        target_ms=st.floats(0, 1e4),
        target_p=st.one_of(st.none(), st.just([None] * len(drafted))),
        bonus_p=st.none() | st.floats(0, 1),
    )
)


row = st.builds(Trace, rounds=st.lists(rounds, max_size=2), first_token=st.integers(0, 9))


@given(
    st.builds(
        Trace,
        rounds=st.lists(rounds, max_size=6),
        prompt_tokens=st.integers(0, 99),
        first_token_p=st.none() | st.floats(0, 1),
        fallback=st.none() | st.text(),
        rows=st.lists(row, max_size=3),
    )
)
def test_json_there_and_back(trace):
    assert Trace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace
    assert len(trace.tokens) == sum(record.committed for record in trace.rounds)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"schema": "dflash-hf/trace/9", "rounds": []}, "trace/9"),
        ([], "list"),
        ({"schema": "dflash-hf/trace/1"}, "damaged"),
        ({"schema": "dflash-hf/trace/1", "rounds": [{"drafted": [1]}]}, "damaged"),
        ({"schema": "dflash-hf/trace/1", "rounds": [], "speed": 9}, "damaged"),
    ],
    ids=["other_schema", "no_object", "no_rounds", "half_a_round", "unknown_field"],
)
def test_what_is_no_trace_is_refused(data, says, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(data))
    with pytest.raises(TraceError, match=says):
        Trace.from_json(path)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(TraceError, match=r"nowhere\.json"):
        Trace.from_json(tmp_path / "nowhere.json")
    trace = Trace(first_token=4, rounds=list(ROUNDS))
    trace.to_json(tmp_path / "t.json")
    assert Trace.from_json(tmp_path / "t.json") == trace
