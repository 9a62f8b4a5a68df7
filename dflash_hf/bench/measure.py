"""Interleaved paired runs: every speed this project quotes is measured here.

In: lanes (:mod:`dflash_hf.bench.lanes`), one of them the baseline, and prompts as inputs. Each prompt is run by every
lane, in an order that is turned round from pair to pair, so that a machine that warms up or slows down hurts all
alike. Whole calls are timed, prefill included, with the device synchronised at their ends only.
Out: a :class:`Report` (:mod:`dflash_hf.bench.report`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from dflash_hf.bench.judge import Verdict, first_difference, parts_at_near_tie
from dflash_hf.bench.lanes import Lane, Run
from dflash_hf.errors import OptionsError
from dflash_hf.trace import Trace

__all__ = ["Case", "LaneResult", "PromptResult", "measure", "to_device"]

Judge = Callable[[Tensor, list[int]], Verdict]


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt as inputs for ``generate``, with the name and group it is reported under."""

    name: str
    inputs: dict[str, Tensor]
    group: str = ""


@dataclass(slots=True)
class LaneResult:
    """One lane on one prompt. ``same_text`` compares with the baseline's ids; None for the baseline itself."""

    tokens: list[int]
    seconds: list[float] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    same_text: bool | None = None
    first_difference: int | None = None
    near_tie: bool | None = (
        None  # judged only where the text differs: does it part from the baseline at near ties only?
    )
    repeatable: bool = True  # whether repeats gave the same text, as greedy lanes should

    @property
    def seconds_per_token(self) -> float:
        """Median over repeats. Per token, so that texts that part at a near tie stay comparable."""
        return median(self.seconds) / max(len(self.tokens), 1)


@dataclass(slots=True)
class PromptResult:
    name: str
    group: str
    prompt_tokens: int
    lanes: dict[str, LaneResult]


def measure(
    lanes: Mapping[str, Lane | Run],
    cases: Sequence[Case],
    *,
    baseline: str = "plain",
    repeats: int = 1,
    warmup: int = 1,
    seed: int = 0,
    judge: Judge | None = None,
    on_prompt: Callable[[PromptResult], None] | None = None,
) -> list[PromptResult]:
    """Run every lane on every prompt.

    Args:
        lanes: name to lane, or to a callable from inputs to ids [1, S + N].
        cases: prompts.
        baseline: the lane whose text is the truth and whose time is 1.
        repeats: timed runs of each lane on each prompt.
        warmup: untimed runs of each lane on the first prompt.
        seed: of the order of lanes.
        judge: asked where a lane's text is not the baseline's: are the differences near ties?
        on_prompt: called with each finished prompt.

    Raises:
        OptionsError: no such baseline, no prompts, or fewer than one repeat.
    """
    if baseline not in lanes:
        raise OptionsError(f"the baseline {baseline!r} is not among the lanes: {', '.join(lanes)}")
    if not cases or repeats < 1:
        raise OptionsError(f"nothing to measure: {len(cases)} prompts, {repeats} repeats")
    chosen = {name: lane if isinstance(lane, Lane) else Lane(lane) for name, lane in lanes.items()}
    for _ in range(warmup):
        for lane in chosen.values():
            lane.run(cases[0].inputs)
    order, results = list(chosen), []
    random.Random(seed).shuffle(order)
    for case in cases:
        result = _paired_runs(chosen, case, order, repeats)
        _compare(result, baseline, case, judge)
        results.append(result)
        if on_prompt is not None:
            on_prompt(result)
    return results


def _paired_runs(lanes: Mapping[str, Lane], case: Case, order: list[str], repeats: int) -> PromptResult:
    """All lanes on one prompt; ``order`` is turned round after every repeat, for the next prompt too."""
    result = PromptResult(case.name, case.group, case.inputs["input_ids"].shape[1], {})
    for _ in range(repeats):
        for name in order:
            _run(lanes[name], case, name, result)
        order.reverse()
    result.lanes = {name: result.lanes[name] for name in lanes}  # as given, not as they happened to run
    return result


def _run(lane: Lane, case: Case, name: str, result: PromptResult) -> None:
    inputs = dict(case.inputs)
    synchronise()
    began = perf_counter()
    sequence = lane.run(inputs)
    synchronise()
    took = perf_counter() - began
    tokens = sequence[0, result.prompt_tokens :].tolist()
    record = result.lanes.setdefault(name, LaneResult(tokens))
    record.repeatable &= record.tokens == tokens
    record.seconds.append(took)
    if lane.trace is not None and (trace := lane.trace()) is not None:
        record.traces.append(trace)


def _compare(result: PromptResult, baseline: str, case: Case, judge: Judge | None) -> None:
    truth = result.lanes[baseline].tokens
    for name, record in result.lanes.items():
        if name == baseline:
            continue
        record.first_difference = first_difference(truth, record.tokens)
        record.same_text = record.first_difference is None
        if not record.same_text and judge is not None:
            verdict = judge(case.inputs["input_ids"], record.tokens)
            record.near_tie = parts_at_near_tie(truth, record.tokens, verdict)


def synchronise() -> None:
    """Wait for the accelerator, where there is one, so that a clock reads finished work."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def to_device(inputs: Any, device: torch.device) -> dict[str, Tensor]:
    """A tokenizer's inputs as a plain dict on ``device``."""
    return {name: tensor.to(device) for name, tensor in inputs.items()}
