"""The line that says why there was no speed-up."""

from __future__ import annotations

from dflash_demo.why import why_no_gain
from dflash_hf import RoundRecord, Trace


def trace(accepted: int, round_ms: float, device: str = "cpu", rounds: int = 10) -> Trace:
    record = RoundRecord([1] * 7, accepted, 2, round_ms=round_ms)
    return Trace(first_token=0, rounds=[record] * rounds, prefill_ms=100, device=device)


def test_a_gain_needs_no_reason() -> None:
    found = trace(accepted=4, round_ms=200)  # 51 tokens in 2.1 s
    assert why_no_gain(found, 51, 5.1, 2.1) is None


def test_a_slow_round_on_a_cpu_is_named_with_its_break_even() -> None:
    said = why_no_gain(trace(accepted=1, round_ms=240), 21, 2.1, 2.5)
    assert said is not None
    assert "a round took 240 ms, as long as 2.4 plain steps, and gave 2.00 tokens" in said
    assert "On a CPU" in said


def test_few_accepted_drafts_are_named_elsewhere() -> None:
    said = why_no_gain(trace(accepted=0, round_ms=120, device="cuda:0"), 11, 1.1, 1.3)
    assert said is not None
    assert "The first drafted token was kept in 0% of the rounds" in said


def test_a_fallback_is_the_reason() -> None:
    found = Trace(first_token=0, fallback="the target is recurrent")
    assert why_no_gain(found, 10, 1.0, 1.0) == "Nothing was drafted: the target is recurrent"


def test_nothing_is_said_of_too_little() -> None:
    assert why_no_gain(trace(0, 100, rounds=1), 2, 0.3, 0.4) is None
    assert why_no_gain(trace(0, 100), 1, 0.1, 1.2) is None
