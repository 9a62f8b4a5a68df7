"""An honest line when drafting did not pay: what a round cost, what it gave, and where the time went."""

from __future__ import annotations

from dflash_demo.story import Clock
from dflash_hf.trace import RoundRecord, Trace

__all__ = ["why_no_gain"]

_HARD_TEXT = 0.5  # of the first drafted tokens kept; below, the drafter does not know this text


def why_no_gain(trace: Trace, drafted: Clock, plain: Clock, draft_cap: int | None = None) -> str | None:
    """The reason, or None where there was a gain or nothing to compare.

    Args:
        trace: of the drafted run.
        drafted, plain: both runs: tokens, seconds of the whole call, seconds to the first token.
        draft_cap: most tokens drafted a round, where one was asked for.
    """
    if trace.fallback:
        return f"Nothing was drafted: {trace.fallback}"
    if draft_cap == 0:
        return "Nothing was drafted: the draft cap is 0."
    rounds = [record for record in trace.rounds if record.drafted]
    if plain.tokens < 2 or plain.first_token is None or drafted.first_token is None or not trace.rounds:
        return None
    if drafted.tokens / drafted.seconds >= plain.tokens / plain.seconds:
        return None
    if not rounds:
        return "Nothing was drafted: the answer left no room for a draft."
    step = (plain.seconds - plain.first_token) / (plain.tokens - 1)
    cost = sum(record.round_ms for record in rounds) / len(rounds) / 1e3
    tau = sum(record.committed for record in rounds) / len(rounds)
    if step <= 0:
        return None
    if tau >= cost / step:
        return _lost_elsewhere(tau, cost / step, drafted, plain, len(rounds) * cost)
    return (
        f"No speed-up: a round took {1e3 * cost:.0f} ms, as long as {cost / step:.1f} plain steps, and gave "
        f"{tau:.2f} tokens. {_weak_side(trace, rounds, step)}"
    )


def _lost_elsewhere(tau: float, steps: float, drafted: Clock, plain: Clock, rounds: float) -> str:
    """The rounds gained; ``rounds`` is their time in seconds."""
    assert drafted.first_token is not None and plain.first_token is not None
    later, rest = drafted.first_token - plain.first_token, drafted.seconds - drafted.first_token - rounds
    start = f"No speed-up, though the rounds gained ({tau:.2f} tokens in the time of {steps:.1f} plain steps): "
    if later >= rest:
        return (
            start + f"the first token came after {drafted.first_token:.2f} s, plain's after {plain.first_token:.2f} s."
        )
    return start + f"beside prefill and rounds the call took {rest:.2f} s."


def _weak_side(trace: Trace, rounds: list[RoundRecord], step: float) -> str:
    """The text where the drafter misses at once, else the largest part of a round; ``step`` in seconds."""
    first = sum(record.accepted > 0 for record in rounds) / len(rounds)
    if first < _HARD_TEXT:
        return f"The first drafted token was kept in {first:.0%} of the rounds: this text is hard for this drafter."
    name, share = max(_parts(rounds).items(), key=lambda part: part[1])
    if name == "checking the block" and trace.device.startswith("cpu") and share > 1.6 * 1e3 * step:
        return f"Most goes to checking the block ({share:.0f} ms); a GPU does that in about one step."
    return f"The largest part is {name}: {share:.0f} ms."


def _parts(rounds: list[RoundRecord]) -> dict[str, float]:
    """Mean milliseconds of a round, by what they went to."""
    parts = {
        "the drafter": [record.drafter_ms for record in rounds],
        "the target's head over the draft": [record.head_ms for record in rounds],
        "checking the block": [record.target_ms for record in rounds],
        "running recurrent layers again": [record.replay_ms for record in rounds],
        "outside the models": [record.loop_ms for record in rounds],
    }
    return {name: sum(times) / len(times) for name, times in parts.items()}
