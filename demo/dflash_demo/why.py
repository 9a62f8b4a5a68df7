"""An honest line when drafting did not pay: what a round cost, what it gave, and what it would have had to give."""

from __future__ import annotations

from statistics import median

from dflash_hf.trace import Trace

__all__ = ["why_no_gain"]


def why_no_gain(trace: Trace, plain_tokens: int, plain_seconds: float, drafted_seconds: float) -> str | None:
    """The reason, or None where there was a gain or nothing to compare.

    Args:
        trace: of the drafted run.
        plain_tokens: of the plain run; plain_seconds: its time, prefill included.
        drafted_seconds: the drafted run's time, prefill included.
    """
    rounds = [record for record in trace.rounds if record.drafted]
    figures = trace.metrics()
    if trace.fallback:
        return f"Nothing was drafted: {trace.fallback}"
    if plain_tokens < 2 or not figures["tau"] or len(rounds) < 2:
        return None
    if len(trace.tokens) / drafted_seconds >= plain_tokens / plain_seconds:
        return None
    step = 1e3 * (plain_seconds - trace.prefill_ms / 1e3) / (plain_tokens - 1)  # the prefill gives the first token
    cost = median(record.round_ms for record in rounds)
    if step <= 0:
        return None
    return (
        f"No speed-up: a round took {cost:.0f} ms, as long as {cost / step:.1f} plain steps, and gave "
        f"{figures['tau']:.2f} tokens. {_weak_side(trace, cost / step, figures)}"
    )


def _weak_side(trace: Trace, break_even: float, figures: dict[str, object]) -> str:
    first = figures["acceptance_by_position"][0]  # type: ignore[index]
    if trace.device.startswith("cpu") and break_even > 1.6:
        return "On a CPU a block costs far more than one token; on a GPU about the same."
    return f"The first drafted token was kept in {first:.0%} of the rounds: this text is hard for this drafter."
