"""The sequential loop, one row: exact for every processor and criterion.

    prefill --taps--> drafter context; the first token
    round:   propose   engine.propose(anchor, J)           J drafted tokens
             verify    target([anchor, draft])             K = J + 1 logits, taps
             accept    acceptance.verdict(logits, draft)   m committed tokens
             commit    state.keep(m), engine.inject(m taps)
             emit      record, on_round; the streamer had each token when it was accepted

Several rows are decoded one after another, each by a loop of its own (``generation.rows``).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from dflash_hf.drafter.heads.draft import Draft
from dflash_hf.generation.acceptance import Acceptance, Verdict
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.generation.clock import RoundClock
from dflash_hf.generation.outputs import TokenOutputs
from dflash_hf.options import DFlashOptions
from dflash_hf.target import host
from dflash_hf.target.rows import RealRows
from dflash_hf.target.state import CropState
from dflash_hf.target.taps import TapRecorder
from dflash_hf.trace import RoundRecord, Trace

__all__ = ["Call", "SequentialLoop"]

_INJECTED_AT_ONCE = 1024  # tokens of a prompt whose taps stand side by side
_PADDING_READ = 64  # tokens a forward, when a row that has ended is read on as padding


@dataclass(frozen=True, slots=True)
class Call:
    """What one row of a call of ``generate`` works with; nothing in here is replaced while it runs."""

    model: PreTrainedModel
    forward: Any  # the model, or the host's compiled call of it
    engine: DFlashCandidateGenerator
    taps: TapRecorder
    state: CropState
    processors: Any  # LogitsProcessorList
    criteria: Any  # StoppingCriteriaList
    config: GenerationConfig
    options: DFlashOptions
    streamer: Any
    clock: RoundClock
    keep_context: bool  # another turn may follow: the last round is injected too
    row: int = 0


class SequentialLoop:
    """One drafted decoding. Create it, then :meth:`run` it once; ``ids`` [1, S + n] is then prompt and continuation."""

    def __init__(self, call: Call, trace: Trace) -> None:
        self.call, self.trace = call, trace
        config, options = call.config, call.options
        self.acceptance = Acceptance(call.processors, call.criteria, config, self._show, options.trace_probabilities)
        self.returned = TokenOutputs(config, call.state)
        coherent = options.proposals == "auto" and call.engine.drafter.head.sequential
        self.draws = bool(config.do_sample) and (coherent or options.proposals == "sampled")
        self.position = 0  # of the anchor, the newest committed token
        self.done = False
        self.outputs: Any = None
        drawn = f"sampled by {'ratio' if self.draws else 'point mass'}" if config.do_sample else "greedy"
        trace.acceptance = f"{drawn}, {'stepwise' if self.acceptance.stepwise else 'vectorised'}"

    def run(self, input_ids: Tensor, kwargs: dict[str, Any]) -> None:
        """Decode to the row's end. ``input_ids`` [1, S]; ``kwargs`` are the model's arguments for the prompt."""
        self.ids, self.kwargs = input_ids, kwargs
        self.trace.prompt_tokens = input_ids.shape[1]
        with self.call.clock.phase("prefill"):
            self._prefill()
        self.call.clock.close(None)
        self.note_memory()
        self._rounds()
        self.note_memory()  # a batch ends its rows' states before the call is over
        if self.call.streamer is not None:
            self.call.streamer.end()

    def note_memory(self) -> None:
        """What drafting takes beside the weights, for the trace: the most it was found to be."""
        trace, call = self.trace, self.call
        trace.context_bytes = max(trace.context_bytes, call.engine.context.bytes)
        trace.taps_bytes = max(trace.taps_bytes, call.taps.most_bytes)
        trace.spare_bytes = max(trace.spare_bytes, call.state.spare_bytes)

    def carry_on(self, length: int) -> None:
        """Decode past the row's own end to this total length, as a batch without end-of-text ids does."""
        self.acceptance.only_length(length)
        self.done = self.ids.shape[1] >= length
        self._rounds()

    def pad(self, length: int, token: int) -> None:
        """Read ``token`` up to this total length, as a batch does with a row that has ended."""
        while (left := length - self.ids.shape[1]) > 0:
            tokens = self.ids.new_full((min(left, self._room(_PADDING_READ - 1) + 1),), token)
            logits, _ = self._verify(tokens[:-1])
            self.acceptance.forced(self.ids, logits, tokens)
            self._commit(tokens[None])
            self.position += len(tokens)

    def _rounds(self) -> None:
        call = self.call
        while not self.done:
            with call.clock.phase("round"):
                record = self._round()
            call.clock.close(record)
            self.trace.rounds.append(record)
            if call.options.on_round is not None:
                call.clock.write_to(self.trace)
                call.options.on_round(record)

    def _prefill(self) -> None:
        call = self.call
        rows = RealRows(call.state.length, self.kwargs.get("attention_mask"))

        def sink(taps: Tensor, positions: Tensor | None) -> None:
            taps, places = rows.select(taps, positions)  # the same name: all rows are not kept beside the real ones
            if not places.shape[1]:
                return
            first, self.position = int(places[0, 0]), int(places[0, -1]) + 1
            if call.engine.most:
                call.engine.context.forget_from(first)  # of an earlier turn: a target may read everything again
                call.engine.inject(taps, places)

        call.state.take(0)
        with call.taps.listen(sink, _INJECTED_AT_ONCE):
            self.outputs = host.prefill(call.model, self.ids, call.config, self.kwargs)
        self.kwargs = host.extend(call.model, self.outputs, self.kwargs, 1)
        call.state.adopt(host.cache_of(call.model, self.kwargs))
        call.state.begin(rows.seen)
        logits = self.outputs.logits[0, -1:]
        verdict = self.acceptance.verdict(self.ids, logits, None)
        self.trace.first_token, self.trace.first_token_p = verdict.tokens[0], verdict.own_p
        self.returned.add_prefill(self.outputs)
        self.ids = torch.cat([self.ids, verdict.ids], dim=1)
        self.done = verdict.done

    def _round(self) -> RoundRecord:
        call = self.call
        count = self._room(call.engine.most)
        draft = None
        if count:
            warp = partial(self.acceptance.warp, device=self.ids.device) if self.draws else None
            draft = call.engine.propose(self.ids[:, -1:], self.position, count, warp)
        tokens = self.ids.new_empty(0) if draft is None else draft.tokens[0].to(self.ids.device)
        logits, taps = self._verify(tokens)
        verdict = self.acceptance.verdict(self.ids, logits, draft)
        self._commit(verdict.ids)
        rows = len(verdict.tokens)
        if call.engine.most and (call.keep_context or not verdict.done):
            call.engine.inject_run(taps[:, :rows], self.position)
        self.position += rows
        self.done = verdict.done
        return self._record(verdict, draft, whole=count == call.engine.most)

    def _room(self, room: int) -> int:
        """How many of ``room`` tokens may follow the anchor in one forward: as length, cache and positions allow."""
        if self.acceptance.limit is not None:
            room = min(room, self.acceptance.limit - self.ids.shape[1] - 1)
        if (free := self.call.state.free) is not None:
            room = min(room, free - 1)
        allowed = self.call.engine.view.room(self.position, self.ids.shape[1], self.call.state.length)
        if allowed is not None:
            room = min(room, allowed)
        return max(room, 0)

    def _verify(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The target reads the anchor and ``tokens`` [J]: logits [K, V] and taps [1, K, L * width]."""
        call, count, caught = self.call, len(tokens), list[Tensor]()
        call.state.take(count + 1)
        with call.clock.phase("target"):
            read = partial(
                host.verify, call.model, call.forward, torch.cat([self.ids, tokens[None]], dim=1), count, self.outputs,
                self.kwargs,
            )  # fmt: skip
            if call.forward is call.model:
                with call.taps.listen(lambda taps, _: caught.append(taps)):
                    self.outputs = read()
            else:  # hooks would break up a compiled graph
                self.outputs = read(output_hidden_states=True)
                caught.append(call.taps.of(self.outputs.hidden_states))
        rows = slice(-count - 1, None)  # a target that starts its cache anew reads everything again
        return self.outputs.logits[0, rows], caught[0][:, rows]

    def _commit(self, ids: Tensor) -> None:
        """Of the verification's K rows the first m stay, those that stand before ``ids`` [1, m]."""
        call, rows = self.call, ids.shape[1]
        self.kwargs = host.extend(call.model, self.outputs, self.kwargs, rows)
        call.state.adopt(host.cache_of(call.model, self.kwargs))
        past = call.state.length
        with call.clock.phase("replay") if call.state.replays(rows) else nullcontext():
            call.state.keep(rows)
        self.returned.add(self.outputs, past, rows)
        self.ids = torch.cat([self.ids, ids], dim=1)

    def _show(self, token: int) -> None:
        """To the streamer, as plain decoding does: each token by itself, flat."""
        if self.call.streamer is not None:
            self.call.streamer.put(torch.tensor([token]))

    def _record(self, verdict: Verdict, draft: Draft | None, *, whole: bool) -> RoundRecord:
        call, drafted = self.call, verdict.drafted
        bonus = verdict.tokens[-1] if len(verdict.tokens) > verdict.accepted else None
        cut = verdict.done or not whole  # a draft that confidence ended had its room
        record = RoundRecord(drafted, verdict.accepted, bonus, cut=cut, row=call.row)
        record.target_p, record.bonus_p = verdict.target_p, verdict.own_p
        if call.options.trace_probabilities and draft is not None:
            record.draft_q = draft.probabilities().tolist()
        return record
