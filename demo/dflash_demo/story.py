"""What has happened in one run, as the messages the browser draws: rounds, both runs' clocks, the verdict.

A message repeats the last rounds, so that one lost on the way does no harm; the last message has all of them. Every
value that comes from a model or a visitor is a string the browser shows as text. ``dflash_demo.view`` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def introduce(self, pair: dict[str, str], block: int, notice: dict[str, str] | None) -> None:
        """The pair is there and the run begins."""
        self.pair, self.block, self.notice, self.phase = pair, block, notice, "prefill"

    def settle(self, texts: Sequence[str], first_token_p: float | None = None) -> None:
        """The finished answer's texts, one a token. Where they are not what was told, the run is told anew.

        They differ when the answer ends inside a character, or its decoder rewrites what it gave before.
        """
        tokens = [token for told in self.rounds for token in told["tokens"]]
        if tokens and first_token_p is not None:
            tokens[0][3] = _rounded([first_token_p], 0)  # known only when the call is over
        if [token[0] for token in tokens] != list(texts):
            for token, text in zip(tokens, texts, strict=True):
                token[0] = text
            self.run, self.told = uuid4().hex, 0  # for a page that only ever adds, this is another run

    def say(self, kind: str, text: str) -> None:
        """A line on the page: ``kind`` is info, warning or error."""
        self.notice = {"kind": kind, "text": text}


class Rounds:
    """Records to messages, in order: the texts of a round depend on those before it."""

    def __init__(self, decode: Decode, specials: Mapping[int, str] | None = None) -> None:
        self._decode, self._texts, self._specials = decode, TokenTexts(decode), specials or {}
        self._anchor, self._at, self._number = 0, 0.0, 0

    def prefill(self, token: int, seconds: float, p: float | None = None) -> dict[str, Any]:
        """Round 0: the prompt was read, and the target said its first token."""
        self._anchor, self._at = token, seconds
        record = RoundRecord([], 0, token, target_ms=1e3 * seconds, round_ms=1e3 * seconds, bonus_p=p)
        return round_message(0, record, self._texts.push([token]), [], self._at, self._specials)

    def add(self, record: RoundRecord) -> dict[str, Any]:
        """The next round."""
        rejected = texts_of_rejected(self._decode, self._anchor, record.drafted, record.accepted)
        self._number += 1
        self._at += record.round_ms / 1e3
        self._anchor = ([self._anchor] + record.tokens)[-1]
        texts = self._texts.push(record.tokens)
        return round_message(self._number, record, texts, rejected, self._at, self._specials)


def round_message(
    number: int,
    record: RoundRecord,
    texts: Sequence[str],
    rejected: Sequence[str],
    at: float,
    specials: Mapping[int, str],
) -> dict[str, Any]:
    """One round for the browser.

    Args:
        number: 0 is the prefill.
        texts: of the committed tokens, in order.
        rejected: texts of the drafted tokens that were not kept.
        at: seconds from the start of the call to the end of this round.
        specials: names of tokens that are no text, by id.
    """
    p, q, kept = record.target_p or [], record.draft_q or [], record.accepted

    def named(token: int) -> list[str]:
        return [specials[token]] if token in specials else []

    def drafted(text: str, place: int, *kind: str) -> list[Any]:
        return [text, *kind, place + 1, _rounded(p, place), _rounded(q, place), *named(record.drafted[place])]

    tokens = [drafted(text, place, "draft") for place, text in enumerate(texts[:kept])]
    if record.bonus is not None:
        tokens.append([texts[kept], "own", kept + 1, _rounded([record.bonus_p], 0), None, *named(record.bonus)])
    times = (record.drafter_ms, record.head_ms, record.target_ms, record.round_ms)
    return {
        "n": number,
        "drafted": len(record.drafted),
        "accepted": kept,
        "cut": record.cut,
        "tokens": tokens,
        "rejected": [drafted(text, kept + place) for place, text in enumerate(rejected)],
        "ms": [round(time, 2) for time in times],
        "at": round(at, 4),
    }


def rounds_of(trace: Trace, decode: Decode, specials: Mapping[int, str] | None = None) -> list[dict[str, Any]]:
    """All rounds of a finished trace."""
    teller, first = Rounds(decode, specials), trace.first_token
    begun = [] if first is None else [teller.prefill(first, trace.prefill_ms / 1e3, trace.first_token_p)]
    rounds = begun + [teller.add(record) for record in trace.rounds]
    tokens = [token for told in rounds for token in told["tokens"]]
    for token, text in zip(tokens, texts_of_trace(decode, trace.tokens), strict=True):
        token[0] = text
    return rounds


def _rounded(values: Sequence[float | None], place: int) -> float | None:
    value = values[place] if place < len(values) else None
    return None if value is None or not isfinite(value) else round(value, 4)  # no browser reads NaN
