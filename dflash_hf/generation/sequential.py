"""The sequential loop, batch 1: exact for every processor and criterion.

    prefill --taps--> drafter context; the first token
    round:   propose   engine.propose(anchor, J)           J drafted tokens
             verify    target([anchor, draft])             K = J + 1 logits, taps
             accept    picks against the draft             m committed tokens
             commit    state.keep(m), engine.inject(m taps)
             emit      streamer, record, on_round

Processors see committed tokens only, once each, in order. Where none of them and no criterion looks at anything but
scores, ids and length, a round is one tensor operation ("vectorised"), else a walk ("stepwise").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from dflash_hf.generation.accept import agreeing_prefix, cut_at_end_of_text, pick
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.generation.clock import RoundClock
from dflash_hf.generation.steps import end_of_text_ids, length_limit, needs_steps
from dflash_hf.options import DFlashOptions
from dflash_hf.target import host
from dflash_hf.target.state import CropState
from dflash_hf.target.taps import TapRecorder
from dflash_hf.trace import RoundRecord, Trace

__all__ = ["Kept", "SequentialLoop"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What the target made of a draft."""

    committed: Tensor  # [m] ids that join the sequence
    accepted: int  # the first so many of them were drafted
    scores: Tensor  # [m or more, V] processed, float32
    target_p: list[float | None] | None = None  # of each drafted token, when asked


@dataclass(slots=True)
class SequentialLoop:
    """One call of ``generate``. Create it, then :meth:`run` it once."""

    model: PreTrainedModel
    engine: DFlashCandidateGenerator
    taps: TapRecorder
    state: CropState
    processors: Any  # LogitsProcessorList
    criteria: Any  # StoppingCriteriaList
    config: GenerationConfig
    options: DFlashOptions
    trace: Trace
    clock: RoundClock
    streamer: Any = None
    ids: Tensor = field(init=False)  # [1, S] committed
    kwargs: dict[str, Any] = field(init=False)  # the model's arguments, describing `ids`
    outputs: Any = field(init=False, default=None)
    position: int = field(init=False, default=0)  # of the anchor, the newest committed token
    done: bool = field(init=False, default=False)
    scores: tuple[Tensor, ...] | None = field(init=False, default=None)
    logits: tuple[Tensor, ...] | None = field(init=False, default=None)
    _accept: Callable[[Tensor, Tensor], Kept] = field(init=False)
    _eos: Tensor | None = field(init=False)
    _limit: int | None = field(init=False)

    def __post_init__(self) -> None:
        stepwise = needs_steps(self.processors, self.criteria)
        self._accept = self._accept_stepwise if stepwise else self._accept_at_once
        self._eos = end_of_text_ids(self.criteria)
        self._limit = length_limit(self.criteria, self.config.max_length)
        if self.config.return_dict_in_generate:
            self.scores = () if self.config.output_scores else None
            self.logits = () if self.config.output_logits else None
        drawn = "sampled" if self.config.do_sample else "greedy"
        self.trace.acceptance = f"{drawn}, {'stepwise' if stepwise else 'vectorised'}"

    def run(self, input_ids: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """Prompt [1, S] to prompt and continuation [1, S + n]."""
        self.ids, self.kwargs = input_ids, kwargs
        self.trace.prompt_tokens = input_ids.shape[1]
        with self.clock.phase("prefill"):
            self._prefill()
        self.clock.close(None)
        while not self.done:
            with self.clock.phase("round"):
                record = self._round()
            self.clock.close(record)
            self.trace.rounds.append(record)
            if self.options.on_round is not None:
                self.clock.write_to(self.trace)
                self.options.on_round(record)
        if self.streamer is not None:
            self.streamer.end()
        return self.ids

    def _prefill(self) -> None:
        rows = _Rows(self.state.length, self.kwargs.get("attention_mask"))

        def sink(taps: Tensor, positions: Tensor | None) -> None:
            kept, places = rows.select(taps, positions)
            self.position = int(places[0, -1]) if places.shape[1] else self.position
            if self.engine.most:
                self.engine.inject(kept, places)

        with self.taps.listen(sink):
            self.outputs = host.prefill(self.model, self.ids, self.config, self.kwargs)
        self.state.begin()
        self.kwargs = host.extend(self.model, self.outputs, self.kwargs, 1)
        kept = self._accept(self.outputs.logits[0, -1:], self.ids.new_empty(0))
        self.position += 1
        self.trace.first_token = int(kept.committed[0])
        self._emit(kept, self.outputs.logits[0, -1:])

    def _round(self) -> RoundRecord:
        count = self._room()
        draft = self.engine.propose(self.ids[:, -1:], self.position, count) if count else None
        tokens = self.ids.new_empty(0) if draft is None else draft.tokens[0].to(self.ids.device)
        caught: list[Tensor] = []
        self.state.take(count + 1)
        with self.clock.phase("target"), self.taps.listen(lambda taps, _: caught.append(taps)):
            sequence = torch.cat([self.ids, tokens[None]], dim=1)
            self.outputs = host.verify(self.model, sequence, count, self.outputs, self.kwargs)
        logits = self.outputs.logits[0, -count - 1 :]
        kept = self._accept(logits, tokens)
        rows = len(kept.committed)
        self.state.keep(rows)
        self.kwargs = host.extend(self.model, self.outputs, self.kwargs, rows)
        if self.engine.most and not self.done:
            places = torch.arange(self.position, self.position + rows)[None]
            self.engine.inject(caught[0][:, :rows], places)
        self.position += rows
        self._emit(kept, logits)
        return self._record(tokens, kept, draft)

    def _room(self) -> int:
        """How many tokens this round drafts: the block, cut to what the length and the positions still allow."""
        room = self.engine.most
        if self._limit is not None:
            room = min(room, self._limit - self.ids.shape[1] - 1)
        if (positions := self.engine.view.position_limit) is not None:
            room = min(room, positions - 1 - self.position)
        return max(room, 0)

    def _accept_at_once(self, logits: Tensor, draft: Tensor) -> Kept:
        """All places in one go: logits [K, V], draft [J]. Moves ``ids`` and ``done``."""
        scores = self.processors(self.ids, self._float(logits))
        picks = pick(scores, self.config.do_sample)
        accepted = int(agreeing_prefix(draft, picks))
        committed = cut_at_end_of_text(picks[: accepted + 1], self._eos)
        self.ids = torch.cat([self.ids, committed[None]], dim=1)
        self.done = bool(self.criteria(self.ids, self.scores).all())
        target_p: list[float | None] | None = None
        if self.options.trace_probabilities:
            target_p = torch.softmax(scores, dim=-1)[: len(draft)].gather(1, draft[:, None]).flatten().tolist()
        return Kept(committed, min(accepted, len(committed)), scores, target_p)

    def _accept_stepwise(self, logits: Tensor, draft: Tensor) -> Kept:
        """Place by place, as plain decoding would go, until the first disagreement or the end."""
        rows, accepted, start = [], 0, self.ids.shape[1]
        probabilities: list[float | None] = [None] * len(draft)
        for place, row in enumerate(self._float(logits)):
            scores = self.processors(self.ids, row[None])
            rows.append(scores)
            token = pick(scores, self.config.do_sample)
            self.ids = torch.cat([self.ids, token[None]], dim=1)
            if self.scores is not None:
                self.scores += (scores,)
            if self.options.trace_probabilities and place < len(draft):
                probabilities[place] = float(torch.softmax(scores[0], dim=-1)[draft[place]])
            self.done = bool(self.criteria(self.ids, self.scores).all())
            agrees = place < len(draft) and bool(token == draft[place])
            accepted += agrees
            if self.done or not agrees:
                break
        target_p = probabilities if self.options.trace_probabilities else None
        return Kept(self.ids[0, start:], accepted, torch.cat(rows), target_p)

    def _float(self, logits: Tensor) -> Tensor:
        """A float32 copy, as plain decoding makes one: processors may write into it."""
        return logits.to(device=self.ids.device, dtype=torch.float32, copy=True)

    def _emit(self, kept: Kept, logits: Tensor) -> None:
        count = len(kept.committed)
        if self.scores is not None and self._accept == self._accept_at_once:
            self.scores += tuple(kept.scores[place, None] for place in range(count))
        if self.logits is not None:
            raw = self._float(logits)
            self.logits += tuple(raw[place, None] for place in range(count))
        if self.streamer is not None:
            self.streamer.put(kept.committed.cpu())

    def _record(self, tokens: Tensor, kept: Kept, draft: Any) -> RoundRecord:
        bonus = int(kept.committed[-1]) if len(kept.committed) > kept.accepted else None
        record = RoundRecord(tokens.tolist(), kept.accepted, bonus, target_p=kept.target_p)
        if self.options.trace_probabilities and draft is not None:
            q = torch.softmax(self.engine.logits_of(draft)[0], dim=-1)
            record.draft_q = q.gather(1, draft.tokens[0][:, None]).flatten().tolist()
        return record


class _Rows:
    """Which rows of a prefill are real tokens, and where they stand: padding is not shown to the drafter."""

    def __init__(self, start: int, mask: Tensor | None) -> None:
        self._next, self._mask = start, mask

    def select(self, taps: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Taps [1, C, ...] and the positions given to the target, to taps and positions [1, c] of real tokens."""
        first, count = self._next, taps.shape[1]
        self._next += count
        if positions is None:
            positions = torch.arange(first, first + count)[None]
        while positions.dim() > 2:  # several axes (M-RoPE): the first is the text's
            positions = positions[0]
        positions = positions.reshape(1, -1).expand(1, count)
        if self._mask is None:
            return taps, positions
        real = self._mask[0, first : first + count].bool()
        return taps[:, real.to(taps.device)], positions[:, real.to(positions.device)]
