"""The page as an endpoint, for programs and for agents (MCP)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from dflash_demo.pairs import Pairs
from dflash_demo.runs import Run
from dflash_demo.settings import Limits, Request
from dflash_demo.visitors import Ticket
from dflash_hf import OptionsError

__all__ = ["answering"]


def answering(pairs: Pairs, limits: Limits) -> Callable[..., dict[str, Any]]:
    """The endpoint over these pairs."""

    def generate(
        prompt: str,
        max_new_tokens: int = 192,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        compare_with_plain: bool = True,
    ) -> dict[str, Any]:
        """Answer a prompt with DFlash speculative decoding and say what drafting gained.

        Args:
            prompt: What the user says.
            max_new_tokens: Most tokens of the answer.
            temperature: 0 is greedy; above, tokens are drawn.
            top_p: Nucleus of the draw.
            seed: Of the draw.
            compare_with_plain: Also run the prompt without the drafter, and compare texts and times.

        Returns:
            text, metrics (acceptance under vLLM's names, tau), the trace of every round, seconds of both runs, and
            whether their texts are identical.
        """
        asked = Request(prompt, max_new_tokens, temperature, top_p, seed, plain=compare_with_plain)
        run = Run(pairs, Ticket(asked), limits)
        last = deque(run.messages(), maxlen=1)[0]
        trace, other = run.outcome.trace, run.outcome.plain
        if last["phase"] != "done" or trace is None:
            raise OptionsError((last["notice"] or {}).get("text", "the run was stopped"))
        return {
            "text": run.outcome.text,
            "metrics": trace.metrics(),
            "seconds": last["drafted_run"]["seconds"],
            "plain_seconds": None if other is None else other.seconds,
            "verdict": last["verdict"],
            "why_no_speed_up": last["why"],
            "trace": trace.to_dict(),
        }

    return generate
