"""What has happened in one run, as the messages the browser draws: rounds, both runs' clocks, the verdict.

A message repeats the last rounds, so that one lost on the way does no harm; the last message has all of them. Every
value that comes from a model or a visitor is a string the browser shows as text. ``dflash_demo.view`` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any
from uuid import uuid4

from dflash_demo.tokens import TokenTexts, texts_of_rejected, texts_of_trace
from dflash_demo.visitors import Ticket
from dflash_hf.streaming import Decode
from dflash_hf.trace import RoundRecord, Trace

__all__ = ["WINDOW", "Clock", "Rounds", "Story", "round_message", "rounds_of"]

WINDOW = 8  # rounds a message repeats, before those that are new


@dataclass(slots=True)
class Clock:
    """How far a run is. Seconds from its start; ``first_token`` likewise."""

    tokens: int = 0
    seconds: float = 0.0
    first_token: float | None = None
    done: bool = False

    def message(self) -> dict[str, Any]:
        first = None if self.first_token is None else round(self.first_token, 4)
        return {"tokens": self.tokens, "seconds": round(self.seconds, 4), "first_token": first, "done": self.done}


@dataclass(slots=True)
class Story:
    """One run, told as it goes; whoever runs it fills it in."""

    run: str
    prompt: str
    pair: dict[str, str]  # target, drafter, dtype, device
    block: int
    probabilities: bool
    phase: str = "waiting"  # prefill, drafting, plain, done, stopped, failed
    notice: dict[str, str] | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
    drafted: Clock = field(default_factory=Clock)
    plain: Clock | None = None
    verdict: dict[str, Any] | None = None
    why: str | None = None
    told: int = 0  # rounds of the messages so far

    @classmethod
    def of(cls, ticket: Ticket) -> Story:
        """Of a run that has not begun."""
        pair = {"target": "", "drafter": "", "dtype": "", "device": ""}
        return cls(ticket.run, ticket.request.prompt, pair, block=0, probabilities=ticket.request.probabilities)

    def message(self, *, whole: bool = False) -> dict[str, Any]:
        """What the browser gets: the rounds since the last message and some before them, or all."""
        count = len(self.rounds)  # once: the run goes on meanwhile
        first = 0 if whole else max(0, self.told - WINDOW)
        self.told = count
        return {
            "run": self.run,
            "phase": self.phase,
            "notice": self.notice,
            "prompt": self.prompt,
            "pair": self.pair,
            "block": self.block,
            "probabilities": self.probabilities,
            "count": count,
            "first": first,
            "rounds": self.rounds[first:count],
            "drafted_run": self.drafted.message(),
            "plain_run": None if self.plain is None else self.plain.message(),
            "verdict": self.verdict,
            "why": self.why,
        }

    def settle(self, texts: Sequence[str]) -> None:
        """The finished answer's texts, one a token. Where they are not what was told, the run is told anew.

        They differ when the answer ends inside a character, or its decoder rewrites what it gave before.
        """
        tokens = [token for told in self.rounds for token in told["tokens"]]
        if [token[0] for token in tokens] != list(texts):
            for token, text in zip(tokens, texts, strict=True):
                token[0] = text
            self.run, self.told = uuid4().hex, 0  # for a page that only ever adds, this is another run

    def say(self, kind: str, text: str) -> None:
        """A line on the page: ``kind`` is info, warning or error."""
        self.notice = {"kind": kind, "text": text}


class Rounds:
    """Records to messages, in order: the texts of a round depend on those before it."""

    def __init__(self, decode: Decode) -> None:
        self._decode, self._texts = decode, TokenTexts(decode)
        self._anchor, self._at, self._number = 0, 0.0, 0

    def prefill(self, token: int, seconds: float) -> dict[str, Any]:
        """Round 0: the prompt was read, and the target said its first token."""
        self._anchor, self._at = token, seconds
        record = RoundRecord([], 0, token, target_ms=1e3 * seconds, round_ms=1e3 * seconds)
        return round_message(0, record, self._texts.push([token]), [], self._at)

    def add(self, record: RoundRecord) -> dict[str, Any]:
        """The next round."""
        rejected = texts_of_rejected(self._decode, self._anchor, record.drafted, record.accepted)
        self._number += 1
        self._at += record.round_ms / 1e3
        self._anchor = ([self._anchor] + record.tokens)[-1]
        return round_message(self._number, record, self._texts.push(record.tokens), rejected, self._at)


def round_message(
    number: int, record: RoundRecord, texts: Sequence[str], rejected: Sequence[str], at: float
) -> dict[str, Any]:
    """One round for the browser.

    Args:
        number: 0 is the prefill.
        texts: of the committed tokens, in order.
        rejected: texts of the drafted tokens that were not kept.
        at: seconds from the start of the call to the end of this round.
    """
    p, q = record.target_p or [], record.draft_q or []

    def entry(text: str, place: int, *kind: str) -> list[Any]:
        return [text, *kind, place + 1, _rounded(p, place), _rounded(q, place)]

    kept = record.accepted
    tokens = [entry(text, place, "draft") for place, text in enumerate(texts[:kept])]
    tokens += [[text, "own", kept + 1, None, None] for text in texts[kept:]]
    times = (record.drafter_ms, record.head_ms, record.target_ms, record.round_ms)
    return {
        "n": number,
        "drafted": len(record.drafted),
        "accepted": kept,
        "cut": record.cut,
        "tokens": tokens,
        "rejected": [entry(text, kept + place) for place, text in enumerate(rejected)],
        "ms": [round(time, 2) for time in times],
        "at": round(at, 4),
    }


def rounds_of(trace: Trace, decode: Decode) -> list[dict[str, Any]]:
    """All rounds of a finished trace."""
    teller = Rounds(decode)
    begun = [] if trace.first_token is None else [teller.prefill(trace.first_token, trace.prefill_ms / 1e3)]
    rounds = begun + [teller.add(record) for record in trace.rounds]
    tokens = [token for told in rounds for token in told["tokens"]]
    for token, text in zip(tokens, texts_of_trace(decode, trace.tokens), strict=True):
        token[0] = text
    return rounds


def _rounded(values: Sequence[float | None], place: int) -> float | None:
    value = values[place] if place < len(values) else None
    return None if value is None or not isfinite(value) else round(value, 4)  # no browser reads NaN
