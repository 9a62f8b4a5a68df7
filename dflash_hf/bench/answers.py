"""One prompt, drafted and plain: timed runs of the public ``generate``, and what their difference is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dflash_hf.bench.pair import Pair

if TYPE_CHECKING:
    from torch import Tensor

    from dflash_hf.bench.judge import Verdict
    from dflash_hf.options import DFlashOptions
    from dflash_hf.trace import Trace

__all__ = ["Answer", "Comparison", "Sampling", "compare", "drafted", "plain"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are taken: greedy at temperature 0."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def arguments(self, max_new_tokens: int | None = None) -> dict[str, Any]:
        """For ``generate``, said in full, so that a model's own generation config does not decide."""
        length = {"max_new_tokens": max_new_tokens or self.max_new_tokens}
        if self.greedy:
            return {**length, "do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        drawn = {"temperature": self.temperature, "top_p": self.top_p, "top_k": 0, "min_p": None}
        return {**length, "do_sample": True, **drawn}


@dataclass(frozen=True, slots=True)
class Answer:
    """New tokens of one run, and the whole call's time, prefill included."""

    tokens: list[int]
    seconds: float
    trace: Trace | None = None

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """Is the drafted text the plain one? ``verdict`` is the judge's, where the two differ."""

    first_difference: int | None
    verdict: Verdict | None = None
    near_tie: bool | None = None  # where they differ: do they part at near ties only?

    @property
    def identical(self) -> bool:
        return self.first_difference is None

    @property
    def ok(self) -> bool:
        """Identical, or different only by near ties."""
        return self.identical or bool(self.near_tie)

    @property
    def gap(self) -> float | None:
        """How far below the plain model's best logit the judged token lies; None where nothing was judged."""
        place = self._judged
        return None if self.verdict is None or place is None else self.verdict.gaps[place]

    @property
    def line(self) -> str:
        if self.verdict is None or self.first_difference is None:
            return "identical: yes"
        start = f"identical: no, from token {self.first_difference} on; "
        if self.verdict.ok and not self.near_tie:
            return start + "one text ends where the other goes on, which is NOT a near tie"
        place = self._judged
        if place is None:
            return start + "a near tie (replayed in one pass, the plain model says the drafted text)"
        kind = "a near tie" if self.near_tie else "NOT a near tie"
        gap, steps = self.verdict.gaps[place], self.verdict.steps[place]
        from dflash_hf.bench.judge import NEAR_NOISE, NEAR_STEPS

        line = f"{steps:.1f} steps of {self.verdict.dtype}, the line is {NEAR_STEPS:g}"
        if self.verdict.noise:  # the wider line, where there are two
            line += f", or a gap of {NEAR_NOISE * self.verdict.noise:.3g} for a quantised target"
        return start + f"{kind} (gap {gap:.3g} at token {place}: {line})"

    @property
    def _judged(self) -> int | None:
        """The token that decides: the first failure, else the first that is not the replayed argmax."""
        if self.verdict is None:
            return None
        return self.verdict.failures[0] if self.verdict.failures else self.verdict.first_difference


def drafted(
    pair: Pair, inputs: Any, sampling: Sampling, *, streamer: Any = None, options: DFlashOptions | None = None
) -> Answer:
    """The prompt through ``generate(assistant=drafter)``."""
    from dflash_hf import DFlashOptions, last_trace

    def run() -> Tensor:
        model: Any = pair.model
        drafting = options or DFlashOptions()
        return model.generate(
            **inputs, assistant=pair.drafter, dflash=drafting, **_streaming(streamer), **sampling.arguments()
        )

    answer = _timed(run, inputs, sampling)
    return Answer(answer.tokens, answer.seconds, last_trace())


def plain(pair: Pair, inputs: Any, sampling: Sampling, *, streamer: Any = None) -> Answer:
    """The prompt through the model's own ``generate``."""
    stock = type(pair.model).generate
    return _timed(lambda: stock(pair.model, **inputs, **_streaming(streamer), **sampling.arguments()), inputs, sampling)


def compare(pair: Pair, inputs: Any, drafted_tokens: list[int], plain_tokens: list[int]) -> Comparison:
    """Greedy texts side by side; the judge is asked only where they differ."""
    from dflash_hf.bench.judge import first_difference, judge, parts_at_near_tie

    place = first_difference(plain_tokens, drafted_tokens)
    if place is None:
        return Comparison(None)
    verdict = judge(pair.model, inputs["input_ids"], drafted_tokens)
    return Comparison(place, verdict, parts_at_near_tie(plain_tokens, drafted_tokens, verdict))


def _streaming(streamer: Any) -> dict[str, Any]:
    return {} if streamer is None else {"streamer": streamer}


def _timed(run: Callable[[], Tensor], inputs: Any, sampling: Sampling) -> Answer:
    import torch

    from dflash_hf.bench.measure import synchronise

    torch.manual_seed(sampling.seed)
    synchronise()
    began = perf_counter()
    sequence = run()
    synchronise()
    seconds = perf_counter() - began
    return Answer(sequence[0, inputs["input_ids"].shape[1] :].tolist(), seconds)
