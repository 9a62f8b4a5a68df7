"""The page as an endpoint for programs, and as a tool for agents (MCP)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dflash_demo.settings import Request
from dflash_demo.telling import Tell, follow
from dflash_demo.visitors import Ticket, Visitors
from dflash_hf import Trace

__all__ = ["answering", "asking"]

_FOR_AGENTS = ("num_spec_steps", "tau", "draft_acceptance_rate")


def answering(tell: Tell, visitors: Visitors) -> Callable[..., dict[str, Any]]:
    """The endpoint. A program that calls it is a visitor like any other; those who wait are told of its run."""

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
        ticket = Ticket(Request(prompt, max_new_tokens, temperature, top_p, seed, plain=compare_with_plain))
        visitors.begin(ticket.run, ticket)
        last: dict[str, Any] = {}
        for kind, body in follow(tell, visitors, ticket.run):
            last[kind] = body
        if last["message"]["phase"] != "done":
            raise _refusal((last["message"]["notice"] or {}).get("text", "the run was stopped"))
        return _answer(last["saved"], last["message"]["why"])

    generate._mcp_type = "none"  # type: ignore[attr-defined]  # Gradio makes a tool of what has no other type
    return generate


def asking(generate: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """The endpoint as a tool: JSON text, because Gradio hands an agent anything else as Python writes it, and without
    the trace, which is long."""

    def ask(
        prompt: str,
        max_new_tokens: int = 192,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        compare_with_plain: bool = True,
    ) -> str:
        """Answer a prompt with DFlash speculative decoding and say what drafting gained.

        Args:
            prompt: What the user says.
            max_new_tokens: Most tokens of the answer.
            temperature: 0 is greedy; above, tokens are drawn.
            top_p: Nucleus of the draw.
            seed: Of the draw.
            compare_with_plain: Also run the prompt without the drafter, and compare texts and times.

        Returns:
            JSON: text, rounds, tokens per round (tau), acceptance, seconds of both runs, are the texts the same.
        """
        answer = generate(prompt, max_new_tokens, temperature, top_p, seed, compare_with_plain)
        trace, figures = answer.pop("trace"), answer.pop("metrics")
        answer["tokens"] = len(Trace.from_dict(trace).tokens)
        return json.dumps({**answer, **{name: figures[name] for name in _FOR_AGENTS}}, ensure_ascii=False)

    return ask


def _answer(saved: dict[str, Any], why: str | None) -> dict[str, Any]:
    plain = saved["plain_run"]
    return {
        "text": "".join(text for told in saved["texts"] for text in told["tokens"]),
        "metrics": Trace.from_dict(saved["trace"]).metrics(),
        "seconds": saved["drafted_run"]["seconds"],
        "plain_seconds": None if plain is None else plain["seconds"],
        "verdict": saved["verdict"],
        "why_no_speed_up": why,
        "trace": saved["trace"],
    }


def _refusal(text: str) -> Exception:
    """Of Gradio's own kind: of any other a caller is told only that something went wrong."""
    from gradio import Error

    return Error(text, print_exception=False)
