"""Prompts go in, the target's answers come out: many rows decoded at once, greedily or drawn.

A batch is read, then goes on token by token; rows that have ended leave it. Each row gets what plain
``generate(do_sample=False)`` or sampling with its temperature and top-p would give it alone, up to the rounding of
floating point, which depends on the shape of a batch: at a near tie a row may go another way than it would alone.
Nothing of the target's generation config is applied but its end-of-text ids, which the caller passes.

Shapes: B rows still in the batch, T tokens in the cache, L taps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.target.host import cache_key, keeps_cache
from dflash_hf.target.positions import frequencies_change
from dflash_hf.target.taps import TapRecorder
from dflash_hf.target.view import TargetView
from dflash_hf.training.answers.cache import answer_cache, pads, shares_start
from dflash_hf.training.answers.choosing import Choosing

__all__ = ["Reply", "answer_batch"]

OnTaps = Callable[[int, Tensor], None]

# Rows that have ended are dropped when they are this share of the batch: dropping copies the cache.
_DROP_SHARE = 1 / 32


class Reply(NamedTuple):
    """What the target said: ``ids`` end with an end-of-text id exactly when ``ended``; else they were cut."""

    ids: list[int]
    ended: bool


@torch.no_grad()
def answer_batch(
    view: TargetView,
    prompts: Sequence[Sequence[int]],
    *,
    eos_ids: Sequence[int],
    max_new_tokens: int,
    temperature: float | Sequence[float] = 0.0,
    top_p: float = 1.0,
    seeds: Sequence[int] | None = None,
    recorder: TapRecorder | None = None,
    on_taps: OnTaps | None = None,
) -> list[Reply]:
    """Answers of 1 to ``max_new_tokens`` tokens, one a prompt, in the prompts' order.

    Args:
        view: the target.
        prompts: token ids, at least one each.
        eos_ids: end-of-text ids; none: every answer is cut at ``max_new_tokens``.
        max_new_tokens: at least 1.
        temperature: of all rows, or one a row; 0 is greedy.
        top_p: nucleus of the rows that are drawn.
        seeds: one a row, needed where a temperature is above 0: what is drawn depends on it and the prompt alone.
        recorder: of the target's taps, with or without its ``with`` block open.
        on_taps: gets (row, taps [c, L * width] in bfloat16) as they are computed: of all a row's tokens but the last
            one, in their order; c is 1 but for the prompt.

    Raises:
        UnsupportedTargetError: the target keeps no cache that can grow.
    """
    assert prompts and all(map(len, prompts)) and max_new_tokens >= 1 and (recorder is None) == (on_taps is None)
    if not keeps_cache(view.model):
        raise UnsupportedTargetError(
            f"{view.name} ({type(view.model).__name__}) keeps no cache that grows, so it cannot answer in batches"
        )
    temperatures = [temperature] * len(prompts) if isinstance(temperature, int | float) else list(temperature)
    choosing = Choosing(temperatures, top_p, seeds)
    replies: dict[int, Reply] = {}
    for rows in _together(view, prompts, max_new_tokens):
        batch = _Batch(view, {row: list(prompts[row]) for row in rows}, recorder, on_taps)
        replies |= _decode(batch, choosing, frozenset(eos_ids), max_new_tokens)
    return [replies[row] for row in range(len(prompts))]


def _together(view: TargetView, prompts: Sequence[Sequence[int]], new: int) -> Iterator[list[int]]:
    """Rows that may share a batch: all; or those of the same length, where the target would not bear padding.

    Recurrent layers would read it, and rotary frequencies that follow the longest row would be another's.
    """
    longest = max(map(len, prompts)) + new
    if pads(answer_cache(view.model)) and not frequencies_change(view.text_config, longest):
        yield list(range(len(prompts)))
        return
    lengths = [len(prompt) for prompt in prompts]
    for length in sorted(set(lengths)):
        yield [row for row, found in enumerate(lengths) if found == length]


def _decode(batch: _Batch, choosing: Choosing, ends: frozenset[int], most: int) -> dict[int, Reply]:
    said: dict[int, list[int]] = {row: [] for row in batch.rows}
    logits = batch.read()
    for count in range(1, most + 1):
        tokens = choosing.tokens(logits, batch.rows)
        for row, token in zip(batch.rows, tokens, strict=True):
            if row in batch.going:
                said[row].append(token)
                if token in ends:
                    batch.going.discard(row)
        if count == most or not batch.going:
            break
        logits = batch.feed(batch.drop_ended(tokens))
    return {row: Reply(ids, ids[-1] in ends) for row, ids in said.items()}


class _Batch:
    """Rows and the target's memory of them. ``rows`` are the callers' numbers, ``going`` those that have not ended."""

    def __init__(
        self, view: TargetView, prompts: dict[int, list[int]], recorder: TapRecorder | None, on_taps: OnTaps | None
    ) -> None:
        self.rows, self.going = list(prompts), set(prompts)
        self._prompts = list(prompts.values())
        self._view, self._recorder, self._on_taps = view, recorder, on_taps
        self._cache = answer_cache(view.model)
        self._takes = set(inspect.signature(view.model.forward).parameters)
        self._device = view.device
        self._mask = torch.ones(len(self.rows), 0, dtype=torch.long)  # [B, T]
        self._next = torch.zeros(len(self.rows), 1, dtype=torch.long)  # [B, 1] position of the next token

    def read(self) -> Tensor:
        """The prompts, padded on the left; logits [B, V] of what comes next. A common start is read once."""
        common = _common_start(self._prompts) if shares_start(self._cache) and "position_ids" in self._takes else 0
        if common:
            start = torch.tensor([self._prompts[0][:common]])
            _, taps = self._forward(start, torch.ones_like(start), torch.arange(common)[None])
            self._hand_on(taps and taps * len(self.rows))
            self._cache.reorder_cache(torch.zeros(len(self.rows), dtype=torch.long))
        rests = [prompt[common:] for prompt in self._prompts]
        longest = max(map(len, rests))
        ids = torch.tensor([[0] * (longest - len(rest)) + rest for rest in rests])
        real = torch.tensor([[0] * (longest - len(rest)) + [1] * len(rest) for rest in rests])
        self._mask = torch.cat([real.new_ones(len(rests), common), real], dim=1)
        positions = (self._mask.cumsum(dim=1) - 1).clamp(min=0)
        self._next = positions[:, -1:] + 1
        logits, taps = self._forward(ids, self._mask, positions[:, common:])
        self._hand_on(taps and [piece[own] for piece, own in zip(taps, real.bool(), strict=True)])
        return logits

    def feed(self, tokens: Sequence[int]) -> Tensor:
        """One token a row [B] to logits [B, V] of the next one."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        logits, taps = self._forward(torch.tensor(tokens)[:, None], self._mask, self._next)
        self._next = self._next + 1
        self._hand_on(taps)
        return logits

    def drop_ended(self, tokens: Sequence[int]) -> list[int]:
        """Let rows go that have ended, once they are enough to be worth it; the tokens [B] of those that stay."""
        keep = [slot for slot, row in enumerate(self.rows) if row in self.going]
        if len(self.rows) - len(keep) < max(1, _DROP_SHARE * len(self.rows)):
            return list(tokens)
        slots = torch.tensor(keep)
        self._cache.reorder_cache(slots.to(self._device))
        self._mask, self._next = self._mask[slots], self._next[slots]
        self.rows = [self.rows[slot] for slot in keep]
        return [tokens[slot] for slot in keep]

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, list[Tensor] | None]:
        """Logits [B, V] of each row's last token, and the taps of the rows [B][C, L * width] when recorded."""
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        arguments = {name: value.to(self._device) for name, value in inputs.items() if name in self._takes}
        if "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = 1
        arguments[cache_key(self._view.model)] = self._cache
        caught: list[Tensor] = []
        listening = self._recorder.listen(lambda taps, _: caught.append(taps)) if self._recorder else nullcontext()
        with listening:
            logits = self._view.model(**arguments, use_cache=True).logits[:, -1]
        return logits, list(caught[0].to(torch.bfloat16).cpu()) if caught else None

    def _hand_on(self, taps: list[Tensor] | None) -> None:
        if self._on_taps is None:
            return
        assert taps is not None
        for row, piece in zip(self.rows, taps, strict=True):
            if row in self.going:
                self._on_taps(row, piece)


def _common_start(prompts: Sequence[Sequence[int]]) -> int:
    """How many ids all begin with, at least one of each prompt left over; 0 for a lone prompt.

    >>> _common_start([[1, 2, 3], [1, 2, 4, 5]]), _common_start([[1, 2], [1, 2]]), _common_start([[1, 2]])
    (2, 1, 0)
    """
    if len(prompts) < 2:
        return 0
    most = min(map(len, prompts)) - 1
    return next((place for place in range(most) if len({prompt[place] for prompt in prompts}) > 1), most)
