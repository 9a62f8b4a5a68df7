"""The sequential loop, batch 1: exact for every processor and criterion.

    prefill --taps--> drafter context; the first token
    round:   propose   engine.propose(anchor, J)           J drafted tokens
             verify    target([anchor, draft])             K = J + 1 logits, taps
             accept    picks against the draft             m committed tokens
             commit    state.keep(m), engine.inject(m taps)
             emit      streamer, record, on_round

Processors see committed tokens only, once each, in order. Where none of them and no criterion looks at anything but
scores, ids and length, a round is one tensor operation and one copy to the host ("vectorised"), else a walk
("stepwise").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from dflash_hf.drafter.head import Draft
from dflash_hf.generation.accept import agreeing_prefix, cut_at_end_of_text, pick
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.generation.clock import RoundClock
from dflash_hf.generation.steps import end_of_text_ids, length_limit, needs_steps
from dflash_hf.options import DFlashOptions
from dflash_hf.target import host
from dflash_hf.target.rows import RealRows
from dflash_hf.target.state import CropState
from dflash_hf.target.taps import TapRecorder
from dflash_hf.trace import RoundRecord, Trace

__all__ = ["Call", "Kept", "SequentialLoop"]


@dataclass(frozen=True, slots=True)
class Call:
    """What one call of ``generate`` works with; nothing in here is replaced while it runs."""

    model: PreTrainedModel
    engine: DFlashCandidateGenerator
    taps: TapRecorder
    state: CropState
    processors: Any  # LogitsProcessorList
    criteria: Any  # StoppingCriteriaList
    config: GenerationConfig
    options: DFlashOptions
    streamer: Any
    clock: RoundClock


@dataclass(frozen=True, slots=True)
class Kept:
    """What the target made of a draft."""

    tokens: list[int]  # committed: they join the sequence
    accepted: int  # the first so many of them were drafted
    scores: Tensor  # [m or more, V] processed, float32
    target_p: list[float | None] | None = None  # of each drafted token, when asked


class SequentialLoop:
    """One drafted decoding. Create it, then :meth:`run` it once.

    ``scores`` and ``logits`` are what ``return_dict_in_generate`` asks for, one [1, V] a token, or None.
    """

    def __init__(self, call: Call, trace: Trace) -> None:
        self.call, self.trace = call, trace
        config = call.config
        self.stepwise = needs_steps(call.processors, call.criteria)
        self.ends = end_of_text_ids(call.criteria)
        self.limit = length_limit(call.criteria, config.max_length)
        self.position = 0  # of the anchor, the newest committed token
        self.done = False
        self.outputs: Any = None
        wanted = config.return_dict_in_generate
        self.scores: tuple[Tensor, ...] | None = () if wanted and config.output_scores else None
        self.logits: tuple[Tensor, ...] | None = () if wanted and config.output_logits else None
        drawn = "sampled" if config.do_sample else "greedy"
        trace.acceptance = f"{drawn}, {'stepwise' if self.stepwise else 'vectorised'}"

    def run(self, input_ids: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """Prompt [1, S] to prompt and continuation [1, S + n]. ``kwargs`` are the model's arguments for the prompt."""
        call = self.call
        self.ids, self.kwargs = input_ids, kwargs
        self.trace.prompt_tokens = input_ids.shape[1]
        with call.clock.phase("prefill"):
            self._prefill()
        call.clock.close(None)
        while not self.done:
            with call.clock.phase("round"):
                record = self._round()
            call.clock.close(record)
            self.trace.rounds.append(record)
            if call.options.on_round is not None:
                call.clock.write_to(self.trace)
                call.options.on_round(record)
        if call.streamer is not None:
            call.streamer.end()
        return self.ids

    def _prefill(self) -> None:
        call = self.call
        rows = RealRows(call.state.length, self.kwargs.get("attention_mask"))

        def sink(taps: Tensor, positions: Tensor | None) -> None:
            real, places = rows.select(taps, positions)
            if places.shape[1]:
                self.position = int(places[0, -1]) + 1
            if call.engine.most:
                call.engine.inject(real, places)

        with call.taps.listen(sink):
            self.outputs = host.prefill(call.model, self.ids, call.config, self.kwargs)
        call.state.begin()
        self.kwargs = host.extend(call.model, self.outputs, self.kwargs, 1)
        logits = self.outputs.logits[0, -1:]
        kept = self._accept(logits, self.ids.new_empty(0))
        self.trace.first_token = kept.tokens[0]
        self._emit(kept, logits)

    def _round(self) -> RoundRecord:
        call, count = self.call, self._room()
        draft = call.engine.propose(self.ids[:, -1:], self.position, count) if count else None
        tokens = self.ids.new_empty(0) if draft is None else draft.tokens[0].to(self.ids.device)
        caught: list[Tensor] = []
        call.state.take(count + 1)
        with call.clock.phase("target"), call.taps.listen(lambda taps, _: caught.append(taps)):
            sequence = torch.cat([self.ids, tokens[None]], dim=1)
            self.outputs = host.verify(call.model, sequence, count, self.outputs, self.kwargs)
        logits = self.outputs.logits[0, -count - 1 :]
        kept = self._accept(logits, tokens)
        rows = len(kept.tokens)
        call.state.keep(rows)
        self.kwargs = host.extend(call.model, self.outputs, self.kwargs, rows)
        if call.engine.most and not self.done:
            call.engine.inject_run(caught[0][:, :rows], self.position)
        self.position += rows
        self._emit(kept, logits)
        return self._record(kept, draft)

    def _room(self) -> int:
        """How many tokens this round drafts: the block, cut to what the length and the positions still allow."""
        room = self.call.engine.most
        if self.limit is not None:
            room = min(room, self.limit - self.ids.shape[1] - 1)
        if (positions := self.call.engine.view.position_limit) is not None:
            room = min(room, positions - 1 - self.position)
        return max(room, 0)

    def _accept(self, logits: Tensor, draft: Tensor) -> Kept:
        """What of ``draft`` [J] stays by ``logits`` [K, V]. Moves ``ids``, ``scores`` and ``done``."""
        copied = logits.to(device=self.ids.device, dtype=torch.float32, copy=True)  # processors may write into it
        return (self._accept_stepwise if self.stepwise else self._accept_at_once)(copied, draft)

    def _accept_at_once(self, logits: Tensor, draft: Tensor) -> Kept:
        scores = self.call.processors(self.ids, logits)
        picks = pick(scores, self.call.config.do_sample)
        both = torch.cat([draft, picks]).tolist()  # the round's one wait for the device
        drafted, own = both[: len(draft)], both[len(draft) :]
        accepted = agreeing_prefix(drafted, own)
        tokens = cut_at_end_of_text(own[: accepted + 1], self.ends)
        self.ids = torch.cat([self.ids, picks[None, : len(tokens)]], dim=1)
        if self.scores is not None:
            self.scores += tuple(scores[place, None] for place in range(len(tokens)))
        self.done = tokens[-1] in self.ends or (self.limit is not None and self.ids.shape[1] >= self.limit)
        target_p: list[float | None] | None = None
        if self.call.options.trace_probabilities:
            target_p = torch.softmax(scores, dim=-1)[: len(draft)].gather(1, draft[:, None]).flatten().tolist()
        return Kept(tokens, min(accepted, len(tokens)), scores, target_p)

    def _accept_stepwise(self, logits: Tensor, draft: Tensor) -> Kept:
        """Place by place, as plain decoding would go, until the first disagreement or the end."""
        call, drafted, tokens, rows = self.call, draft.tolist(), list[int](), list[Tensor]()
        accepted = 0
        probabilities: list[float | None] = [None] * len(drafted)
        for place, row in enumerate(logits):
            scores = call.processors(self.ids, row[None])
            rows.append(scores)
            token = pick(scores, call.config.do_sample)
            tokens.append(int(token))
            self.ids = torch.cat([self.ids, token[None]], dim=1)
            if self.scores is not None:
                self.scores += (scores,)
            if call.options.trace_probabilities and place < len(drafted):
                probabilities[place] = float(torch.softmax(scores[0], dim=-1)[drafted[place]])
            self.done = bool(call.criteria(self.ids, self.scores).all())
            agrees = place < len(drafted) and tokens[-1] == drafted[place]
            accepted += agrees
            if self.done or not agrees:
                break
        return Kept(tokens, accepted, torch.cat(rows), probabilities if call.options.trace_probabilities else None)

    def _emit(self, kept: Kept, logits: Tensor) -> None:
        if self.logits is not None:
            raw = logits[: len(kept.tokens)].to(device=self.ids.device, dtype=torch.float32, copy=True)
            self.logits += tuple(row[None] for row in raw)
        if self.call.streamer is not None:
            self.call.streamer.put(torch.tensor(kept.tokens))

    def _record(self, kept: Kept, draft: Draft | None) -> RoundRecord:
        drafted = [] if draft is None else draft.tokens[0].tolist()
        bonus = kept.tokens[-1] if len(kept.tokens) > kept.accepted else None
        cut = self.done or len(drafted) < self.call.engine.most
        record = RoundRecord(drafted, kept.accepted, bonus, cut=cut, target_p=kept.target_p)
        if self.call.options.trace_probabilities and draft is not None:
            q = torch.softmax(self.call.engine.logits_of(draft)[0], dim=-1)
            record.draft_q = q.gather(1, draft.tokens[0][:, None]).flatten().tolist()
        return record
