"""The line that says why there was no speed-up."""

from __future__ import annotations

import pytest

from dflash_demo.story import Clock
from dflash_demo.why import why_no_gain
from dflash_hf import RoundRecord, Trace


def trace(accepted: int, round_ms: float, device: str = "cpu", rounds: int = 10, **parts: float) -> Trace:
    record = RoundRecord([1] * 7, accepted, 2, round_ms=round_ms, **parts)
    return Trace(first_token=0, rounds=[record] * rounds, prefill_ms=100, device=device)


def clock(tokens: int, seconds: float, first_token: float = 0.1) -> Clock:
    return Clock(tokens, seconds, first_token, done=True)


def test_a_gain_needs_no_reason() -> None:
    assert why_no_gain(trace(accepted=4, round_ms=200), clock(51, 2.1), clock(51, 5.1)) is None


def test_a_slow_round_on_a_cpu_is_named_with_its_break_even() -> None:
    found = trace(accepted=1, round_ms=240, target_ms=200, drafter_ms=20)
    assert why_no_gain(found, clock(21, 2.5), clock(21, 2.1)) == (
        "No speed-up: a round took 240 ms, as long as 2.4 plain steps, and gave 2.00 tokens. "
        "Most goes to checking the block (200 ms); a GPU does that in about one step."
    )


def test_a_plain_step_is_counted_from_the_plain_runs_own_first_token() -> None:
    """The drafted run's prefill, 1.1 s here, says nothing of it."""
    found = trace(accepted=1, round_ms=240)
    found.prefill_ms = 1100
    said = why_no_gain(found, clock(21, 3.5, first_token=1.1), clock(21, 2.1, first_token=0.1))
    assert said is not None and "240 ms, as long as 2.4 plain steps" in said


def test_few_first_drafts_kept_are_the_texts_fault_and_many_are_not() -> None:
    hard = why_no_gain(trace(accepted=0, round_ms=120, device="cuda:0"), clock(11, 1.3), clock(11, 1.1))
    assert hard is not None and "The first drafted token was kept in 0% of the rounds" in hard
    found = trace(accepted=7, round_ms=900, device="cuda:0", target_ms=90, drafter_ms=700)
    said = why_no_gain(found, clock(81, 9.1), clock(81, 8.1))
    assert said is not None and said.endswith("gave 8.00 tokens. The largest part is the drafter: 700 ms.")


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("drafter_ms", "the drafter"),
        ("head_ms", "the target's head over the draft"),
        ("target_ms", "checking the block"),
        ("replay_ms", "running recurrent layers again"),
        ("loop_ms", "outside the models"),
    ],
)
def test_the_largest_part_of_a_round_is_named(part: str, named: str) -> None:
    found = trace(accepted=1, round_ms=300, device="cuda:0", **({} if part == "loop_ms" else {part: 200}))
    said = why_no_gain(found, clock(21, 3.1), clock(21, 2.1))
    assert said is not None and said.endswith(f"The largest part is {named}: {300 if part == 'loop_ms' else 200} ms.")


def test_rounds_that_gained_are_not_blamed() -> None:
    found = trace(accepted=3, round_ms=200)  # 4 tokens for 2 plain steps
    assert why_no_gain(found, clock(41, 7.0, first_token=5.0), clock(41, 4.1)) == (
        "No speed-up, though the rounds gained (4.00 tokens in the time of 2.0 plain steps): "
        "the first token came after 5.00 s, plain's after 0.10 s."
    )
    said = why_no_gain(found, clock(41, 6.1), clock(41, 4.1))
    assert said is not None and said.endswith("beside prefill and rounds the call took 4.00 s.")


def test_one_round_has_a_reason_too() -> None:
    said = why_no_gain(trace(accepted=0, round_ms=300, rounds=1), clock(2, 0.4), clock(2, 0.2))
    assert said is not None and "a round took 300 ms, as long as 3.0 plain steps, and gave 1.00 tokens" in said


def test_where_nothing_was_drafted_that_is_the_reason() -> None:
    found = Trace(first_token=0, fallback="the target is recurrent")
    assert why_no_gain(found, clock(10, 1.0), clock(10, 1.0)) == "Nothing was drafted: the target is recurrent"
    found = Trace(first_token=0, rounds=[RoundRecord([], 0, 2, round_ms=100)])
    assert why_no_gain(found, clock(2, 0.3), clock(2, 0.2), 0) == "Nothing was drafted: the draft cap is 0."
    assert why_no_gain(found, clock(2, 0.3), clock(2, 0.2)) == (
        "Nothing was drafted: the answer left no room for a draft."
    )


def test_nothing_is_said_of_too_little() -> None:
    assert why_no_gain(trace(0, 100), clock(1, 1.2), clock(1, 0.1)) is None
    assert why_no_gain(Trace(first_token=0), clock(1, 1.2), clock(2, 0.1)) is None
