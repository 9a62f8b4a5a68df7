"""One run: the drafted answer, then the plain one, on a thread of its own; messages for the browser come out.

Both runs are transformers' public ``generate``. They are stopped by an exception out of the callback that every round
(or, in the plain run, every token) makes, which leaves model and caches as they were.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from threading import Thread
from time import perf_counter
from typing import Any

from dflash_demo.pairs import Pairs
from dflash_demo.settings import Limits, Request
from dflash_demo.story import Clock, Rounds, Story
from dflash_demo.thinking import thinking_warning
from dflash_demo.tokens import texts_of_trace
from dflash_demo.visitors import Ticket
from dflash_demo.why import why_no_gain
from dflash_hf import DFlashError, DFlashOptions, OptionsError, RoundRecord, Trace, last_trace
from dflash_hf.bench.answers import Answer, compare, drafted, plain
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
    plain: Answer | None = None


class Run:
    """One visitor's run. Its ticket may be stopped from anywhere, at any time."""

    def __init__(self, pairs: Pairs, ticket: Ticket, limits: Limits) -> None:
        self._pairs, self._ticket, self._request, self._limits = pairs, ticket, ticket.request, limits
        self._news = queue.SimpleQueue[bool]()
        self._deadline = float("inf")
        self.outcome = Outcome()
        self.story = Story.of(ticket)

    def messages(self) -> Iterator[dict[str, Any]]:
        """The run, told as it goes; closing the iterator stops the run."""
        worker = Thread(target=self._work, name="dflash-demo-run", daemon=True)
        worker.start()
        try:
            yield self.story.message()
            while self._wait():
                yield self.story.message()
            yield self.story.message(whole=True)
        finally:
            self._ticket.stop()
            worker.join()

    def _wait(self) -> bool:
        """Until there is news worth a message; False when the run is over."""
        going = self._news.get()
        until = perf_counter() + _BETWEEN_MESSAGES
        while going and (left := until - perf_counter()) > 0:
            try:
                going = self._news.get(timeout=left)
            except queue.Empty:
                break
        return going

    def _work(self) -> None:
        try:
            self._tell()
        except _Stopped:
            self.story.phase = "stopped"
        except DFlashError as error:
            self._fail(str(error))
        except Exception as error:
            _log.exception("a run failed")
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._news.put(False)

    def _fail(self, text: str) -> None:
        self.story.phase = "failed"
        self.story.say("error", text)

    def _tell(self) -> None:
        self._check_stop()  # before a pair is loaded for nobody
        request = self._request.checked(self._limits)
        pair = self._pairs.get(request.dtype, self._loading)
        inputs = self._inputs(pair, request)
        self._introduce(pair)
        answer = self._drafted(pair, inputs)
        if request.plain:
            self._plain(pair, inputs, answer)
        self.story.phase = "done"

    def _loading(self, text: str) -> None:
        self.story.say("info", text[:1].upper() + text[1:] + " ...")
        self._news.put(True)

    def _inputs(self, pair: Pair, request: Request) -> dict[str, Any]:
        inputs = to_device(encode(pair.tokenizer, request.prompt, thinking=request.thinking), pair.device)
        if (count := inputs["input_ids"].shape[1]) > self._limits.prompt_tokens:
            raise OptionsError(f"The prompt has {count:,} tokens; this page takes {self._limits.prompt_tokens:,}.")
        return inputs

    def _introduce(self, pair: Pair) -> None:
        story = self.story
        dtype = str(pair.model.dtype).removeprefix("torch.")
        story.pair = {**pair.names, "dtype": dtype, "device": str(pair.device)}
        story.block, story.notice, story.phase = pair.drafter.config.block_size, None, "prefill"
        if warning := thinking_warning(pair, self._request.thinking):
            story.say("warning", warning)
        self._news.put(True)

    def _begin(self) -> float:
        self._check_stop()
        self._deadline = perf_counter() + self._limits.seconds
        return perf_counter()

    def _check_stop(self) -> None:
        if self._ticket.stopped:
            raise _Stopped
        if perf_counter() > self._deadline:
            self.story.say("warning", f"Stopped after {self._limits.seconds:.0f} seconds, this page's limit.")
            raise _Stopped

    def _drafted(self, pair: Pair, inputs: dict[str, Any]) -> Answer:
        decode, story, request = decoder_of(pair.tokenizer), self.story, self._request
        rounds = Rounds(decode)
        began = self._begin()

        def first_token(tokens: list[int]) -> None:
            story.drafted.first_token = perf_counter() - began
            story.phase = "drafting"
            add(rounds.prefill(tokens[0], story.drafted.first_token))

        def on_round(record: RoundRecord) -> None:
            add(rounds.add(record))
            self._check_stop()

        def add(message: dict[str, Any]) -> None:
            story.rounds.append(message)
            story.drafted.tokens += len(message["tokens"])
            story.drafted.seconds = perf_counter() - began
            self._news.put(True)

        options = DFlashOptions(
            max_draft_tokens=request.draft_cap, trace_probabilities=request.probabilities, on_round=on_round
        )
        try:
            answer = drafted(pair, inputs, request.sampling, streamer=_FirstToken(first_token), options=options)
        except _Stopped:
            self._keep(pair, decode)  # what it did so far
            raise
        story.drafted.seconds, story.drafted.done = answer.seconds, True
        self._keep(pair, decode)
        return answer

    def _keep(self, pair: Pair, decode: Decode) -> None:
        trace = last_trace()
        assert trace is not None
        trace.target, trace.drafter = pair.names["target"], pair.names["drafter"]
        self.outcome.trace, self.outcome.text = trace, decode(trace.tokens)
        self.story.settle(texts_of_trace(decode, trace.tokens))

    def _plain(self, pair: Pair, inputs: dict[str, Any], answer: Answer) -> None:
        clock = self.story.plain = Clock()
        self.story.phase = "plain"
        began = self._begin()

        def on_token() -> None:
            self._check_stop()
            clock.tokens += 1
            clock.seconds = perf_counter() - began
            clock.first_token = clock.first_token or clock.seconds
            self._news.put(True)

        self.outcome.plain = other = plain(pair, inputs, self._request.sampling, streamer=_EachToken(on_token))
        clock.tokens, clock.seconds, clock.done = len(other.tokens), other.seconds, True
        self.story.verdict = self._verdict(pair, inputs, answer, other)
        assert answer.trace is not None
        self.story.why = why_no_gain(answer.trace, len(other.tokens), other.seconds, answer.seconds)

    def _verdict(self, pair: Pair, inputs: dict[str, Any], answer: Answer, other: Answer) -> dict[str, Any]:
        if not self._request.sampling.greedy:
            return _verdict("sampled", "two draws at this temperature: their texts are not compared")
        found = compare(pair, inputs, answer.tokens, other.tokens)
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
