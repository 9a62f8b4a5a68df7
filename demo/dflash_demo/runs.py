"""One run: the drafted answer, then the plain one, on a thread of its own; messages for the browser come out.

Both runs are transformers' public ``generate``. They are stopped by an exception out of the callback that every round
(or, in the plain run, every token) makes, which leaves model and caches as they were.
The story belongs to whoever iterates the messages: what the worker has to say of it goes through a queue, in order, so
that texts are made outside the timed calls.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from threading import Event, Thread
from time import perf_counter
from typing import Any

from dflash_demo.pairs import Pairs
from dflash_demo.settings import Limits, Request
from dflash_demo.story import Clock, Rounds, Story
from dflash_demo.thinking import thinking_warning
from dflash_demo.tokens import special_names, texts_of_trace
from dflash_demo.visitors import Ticket
from dflash_demo.why import why_no_gain
from dflash_hf import DFlashError, DFlashOptions, OptionsError, RoundRecord, Trace, last_trace
from dflash_hf.bench.answers import Answer, compare, drafted, plain
from dflash_hf.bench.judge import first_difference
from dflash_hf.bench.measure import to_device
from dflash_hf.bench.pair import Pair
from dflash_hf.bench.prompts import encode
from dflash_hf.streaming import Decode, decoder_of

__all__ = ["Outcome", "Run"]

_BETWEEN_MESSAGES = 0.05  # seconds: at most twenty a second
_log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Out of ``generate``, because the visitor said so or the time is up."""


@dataclass(slots=True)
class Outcome:
    """What a run leaves, also one that was stopped, for saving and for the API."""

    trace: Trace | None = None
    text: str = ""
    specials: dict[int, str] = field(default_factory=dict)  # names of tokens that are no text
    plain: Answer | None = None


class Run:
    """One visitor's run. Its ticket may be stopped from anywhere, at any time."""

    def __init__(self, pairs: Pairs, ticket: Ticket, limits: Limits) -> None:
        self._pairs, self._ticket, self._request, self._limits = pairs, ticket, ticket.request, limits
        self._news = queue.SimpleQueue[Callable[[], None] | None]()  # what the worker has to tell; None: it is over
        self._deadline = float("inf")
        self.outcome = Outcome()
        self.story = Story.of(ticket)

    def messages(self) -> Iterator[dict[str, Any]]:
        """The run, told as it goes; closing the iterator stops the run."""
        worker = Thread(target=self._work, name="dflash-demo-run", daemon=True)
        worker.start()
        going = True
        try:
            yield self.story.message()
            while going:
                going = self._hear()
                if going:
                    yield self.story.message()
            yield self.story.message(whole=True)
        finally:
            self._ticket.stop()
            worker.join()
            while going and (told := self._news.get()) is not None:
                told()

    def _hear(self) -> bool:
        """Until there is news worth a message; False when the run is over."""
        news = self._news.get()
        until = perf_counter() + _BETWEEN_MESSAGES
        while news is not None:
            news()
            if (left := until - perf_counter()) <= 0:
                return True
            try:
                news = self._news.get(timeout=left)
            except queue.Empty:
                return True
        return False

    def _tell(self, change: Callable[..., None], *values: Any) -> None:
        """Let the story's own thread make a change."""
        self._news.put(partial(change, *values))

    def _enter(self, phase: str) -> None:
        self._tell(setattr, self.story, "phase", phase)

    def _work(self) -> None:
        try:
            self._run()
        except _Stopped:
            self._enter("stopped")
        except DFlashError as error:
            self._fail(str(error))
        except Exception as error:
            _log.exception("a run failed")
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._news.put(None)

    def _fail(self, text: str) -> None:
        self._enter("failed")
        self._tell(self.story.say, "error", text)

    def _run(self) -> None:
        self._check_stop()  # before a pair is loaded for nobody
        request = self._request.checked(self._limits)
        pair = self._pairs.get(request.dtype, self._loading)
        inputs = self._inputs(pair, request)
        self._introduce(pair)
        answer, clock = self._drafted(pair, inputs)
        self._catch_up()
        if request.plain:
            self._plain(pair, inputs, answer, clock)
        self._enter("done")

    def _loading(self, text: str) -> None:
        self._tell(self.story.say, "info", text[:1].upper() + text[1:] + " ...")

    def _inputs(self, pair: Pair, request: Request) -> dict[str, Any]:
        inputs = to_device(encode(pair.tokenizer, request.prompt, thinking=request.thinking), pair.device)
        if (count := inputs["input_ids"].shape[1]) > self._limits.prompt_tokens:
            raise OptionsError(f"The prompt has {count:,} tokens; this page takes {self._limits.prompt_tokens:,}.")
        return inputs

    def _introduce(self, pair: Pair) -> None:
        dtype = str(pair.model.dtype).removeprefix("torch.")
        named = {**pair.names, "dtype": dtype, "device": str(pair.device)}
        warning = thinking_warning(pair, self._request.prompt, self._request.thinking)
        notice = None if warning is None else {"kind": "warning", "text": warning}
        self._tell(self.story.introduce, named, pair.drafter.config.block_size, notice)

    def _begin(self) -> float:
        if self._ticket.stopped:
            raise _Stopped
        self._deadline = perf_counter() + self._limits.seconds
        return perf_counter()

    def _check_stop(self) -> None:
        if self._ticket.stopped:
            raise _Stopped
        if perf_counter() > self._deadline:
            text = f"Stopped after {self._limits.seconds:.0f} seconds, this page's limit."
            self._tell(self.story.say, "warning", text)
            raise _Stopped

    def _catch_up(self) -> None:
        """Until all is told: no text of this run is made while the next one is timed."""
        told = Event()
        self._tell(told.set)
        while not told.wait(_BETWEEN_MESSAGES):
            if self._ticket.stopped:
                raise _Stopped

    def _drafted(self, pair: Pair, inputs: dict[str, Any]) -> tuple[Answer, Clock]:
        decode, specials, request = decoder_of(pair.tokenizer), special_names(pair.tokenizer), self._request
        rounds, clock = Rounds(decode, specials), Clock()
        self.outcome.specials = specials
        began = self._begin()

        def first_token(tokens: list[int]) -> None:
            clock.tokens, clock.seconds = 1, perf_counter() - began
            clock.first_token = clock.seconds
            self._tell(self._add_prefill, rounds, tokens[0], replace(clock))

        def on_round(record: RoundRecord) -> None:
            clock.tokens += record.committed
            clock.seconds = perf_counter() - began
            self._tell(self._add, rounds, record, replace(clock))
            self._check_stop()

        options = DFlashOptions(
            max_draft_tokens=request.draft_cap, trace_probabilities=request.probabilities, on_round=on_round
        )
        try:
            answer = drafted(pair, inputs, request.sampling, streamer=_FirstToken(first_token), options=options)
        except _Stopped:
            self._keep(pair, decode, clock)  # what it did so far
            raise
        clock.seconds, clock.done = answer.seconds, True
        self._keep(pair, decode, clock)
        return answer, clock

    def _add_prefill(self, rounds: Rounds, token: int, clock: Clock) -> None:
        assert clock.first_token is not None
        self.story.phase, self.story.drafted = "drafting", clock
        self.story.rounds.append(rounds.prefill(token, clock.first_token))

    def _add(self, rounds: Rounds, record: RoundRecord, clock: Clock) -> None:
        self.story.drafted = clock
        self.story.rounds.append(rounds.add(record))

    def _keep(self, pair: Pair, decode: Decode, clock: Clock) -> None:
        trace = last_trace()
        assert trace is not None
        trace.target, trace.drafter = pair.names["target"], pair.names["drafter"]
        self.outcome.trace = trace
        self._tell(self._settle, decode, trace, clock)

    def _settle(self, decode: Decode, trace: Trace, clock: Clock) -> None:
        self.outcome.text = decode(trace.tokens)
        self.story.drafted = clock
        self.story.settle(texts_of_trace(decode, trace.tokens), trace.first_token_p)

    def _plain(self, pair: Pair, inputs: dict[str, Any], answer: Answer, drafted_clock: Clock) -> None:
        clock = Clock()
        self._tell(setattr, self.story, "plain", replace(clock))
        self._enter("plain")
        began = self._begin()

        def on_token() -> None:
            self._check_stop()
            clock.tokens += 1
            clock.seconds = perf_counter() - began
            clock.first_token = clock.first_token or clock.seconds
            self._tell(setattr, self.story, "plain", replace(clock))

        self.outcome.plain = other = plain(pair, inputs, self._request.sampling, streamer=_EachToken(on_token))
        clock.tokens, clock.seconds, clock.done = len(other.tokens), other.seconds, True
        assert answer.trace is not None
        self._tell(setattr, self.story, "plain", clock)
        self._tell(setattr, self.story, "verdict", self._verdict(pair, inputs, answer, other))
        why = why_no_gain(answer.trace, drafted_clock, clock, self._request.draft_cap)
        self._tell(setattr, self.story, "why", why)

    def _verdict(self, pair: Pair, inputs: dict[str, Any], answer: Answer, other: Answer) -> dict[str, Any]:
        if not self._request.sampling.greedy:
            return _verdict("sampled", "two draws at this temperature: their texts are not compared")
        try:
            found = compare(pair, inputs, answer.tokens, other.tokens)
        except DFlashError as error:  # both runs are done: that they cannot be judged takes nothing from them
            place = first_difference(other.tokens, answer.tokens)
            return _verdict("unchecked", f"differs at token {place}; not judged: {error}", place)
        if found.identical:
            return _verdict("identical", "identical text")
        start = f"differs at token {found.first_difference}"
        if found.verdict is not None and found.verdict.ok and not found.near_tie:
            return _verdict("differs", f"{start}: one text ends where the other goes on", found.first_difference)
        gap = (
            None if found.gap is None or not isfinite(found.gap) else float(f"{found.gap:.3g}")
        )  # no browser reads NaN
        kind, said = ("near_tie", start) if found.near_tie else ("differs", f"{start}, no near tie")
        return _verdict(kind, said, found.first_difference, gap)


def _verdict(kind: str, text: str, token: int | None = None, gap: float | None = None) -> dict[str, Any]:
    return {"kind": kind, "text": text, "token": token, "gap": gap}


class _FirstToken:
    """A streamer that hears of the prefill's token only: rounds are told by ``on_round``."""

    def __init__(self, heard: Any) -> None:
        self._heard, self._calls = heard, 0

    def put(self, value: Any) -> None:
        self._calls += 1
        if self._calls == 2:  # the first is the prompt
            self._heard(value.flatten().tolist())

    def end(self) -> None:
        pass


class _EachToken:
    """A streamer that counts."""

    def __init__(self, heard: Any) -> None:
        self._heard, self._began = heard, False

    def put(self, value: Any) -> None:
        if self._began:
            self._heard()
        self._began = True  # the first call is the prompt

    def end(self) -> None:
        pass
