"""The near-tie judge: is this greedy text what the plain model would have said?

In: a model, a prompt, and the ids some lane emitted after it. Out: a :class:`Verdict`. The text is replayed through
the plain model (teacher-forced), and every emitted token must be the plain model's argmax or lie within a near tie.

A near tie is a gap between the best logit and the emitted token's of at most two steps of the dtype at that logit's
size. A forward over a block and a forward over one token round differently, so in bfloat16 two logits a step apart
may change places; that is no mistake of a lane. A larger gap is.

A quantised model repeats itself less well: LLM.int8 picks its outlier columns over all tokens of a forward. It is asked
twice, token by token as plain decoding reads, and whole; how far the two readings lie apart widens the tie.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.generation import LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from dflash_hf.errors import UnsupportedCallError
from dflash_hf.target.devices import computing_device
from dflash_hf.target.host import cache_key
from dflash_hf.target.plain_weights import is_quantised

__all__ = ["NEAR_STEPS", "Verdict", "dtype_step", "first_difference", "judge", "parts_at_near_tie"]

NEAR_STEPS = 2.0  # steps of the dtype within which a gap is a near tie
NEAR_NOISE = 4.0  # of a quantised model: how many times the spread between two of its readings a near tie may be
_CHUNK = 256  # tokens per replayed forward: bounds the logits held at once to [256, V]

# Fields of a generation config that move logits around; the judge knows the repetition penalty, not the others.
_MOVES_LOGITS = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "min_length": 0,
    "min_new_tokens": None,
    "no_repeat_ngram_size": 0,
    "sequence_bias": None,
    "suppress_tokens": None,
    "watermarking_config": None,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the plain model thinks of each emitted token.

    Args:
        gaps: per token, the plain model's best logit less the emitted token's; 0 where it is the argmax.
        steps: the same in steps of the dtype at the best logit's size.
        near_ties: places of tokens that are not the argmax but within a near tie (an exact tie is one).
        failures: places of tokens beyond a near tie.
        dtype: whose steps were counted.
        noise: of a quantised model, the spread between its two readings of this text in logits, root mean square; 0
            of any other.
    """

    gaps: list[float]
    steps: list[float]
    near_ties: list[int]
    failures: list[int]
    dtype: str
    noise: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def near_tie_share(self) -> float:
        """Near ties among all tokens; 0 for no tokens at all."""
        return len(self.near_ties) / len(self.gaps) if self.gaps else 0.0

    @property
    def first_difference(self) -> int | None:
        """The first token that is not the replayed argmax, near tie or not."""
        return min([*self.near_ties, *self.failures], default=None)

    def to_dict(self) -> dict[str, Any]:
        derived = {"ok": self.ok, "near_tie_share": self.near_tie_share, "first_difference": self.first_difference}
        return {**asdict(self), **derived}


@torch.no_grad()
def judge(
    model: PreTrainedModel,
    prompt_ids: Tensor,  # [S] or [1, S]
    output_ids: Tensor | list[int],  # [N] the ids after the prompt
    dtype: torch.dtype | None = None,
) -> Verdict:
    """Replay ``output_ids`` after ``prompt_ids`` through ``model`` and judge every token.

    Args:
        model: the plain model. An attached one will do: drafting lives in ``generate``, which is not called.
        prompt_ids: the prompt, one row.
        output_ids: what was emitted after it, greedily, without logits processors of the user's own.
        dtype: whose steps count; the dtype of the model's logits by default.

    Returns:
        The verdict; ``verdict.ok`` says whether every token is the argmax or within a near tie.

    Raises:
        UnsupportedCallError: the model's generation config changes logits in a way the judge does not replay.
    """
    penalty = _replayed_processors(model.generation_config)
    device = computing_device(model)
    prompt = torch.as_tensor(prompt_ids, device=device).reshape(1, -1)
    output = torch.as_tensor(output_ids, device=device, dtype=prompt.dtype).reshape(1, -1)
    sequence = torch.cat([prompt, output], dim=1)
    gaps: list[float] = []
    steps: list[float] = []
    differs: list[bool] = []
    apart: list[float] = []
    for start, logits, square in _readings(model, sequence, prompt.shape[1]):
        apart.append(square)
        scale = dtype or logits.dtype
        scores_NV = _processed(penalty, sequence, start, logits.float())
        emitted_N = sequence[0, start + 1 : start + 1 + len(scores_NV)]
        best_N = scores_NV.max(dim=-1).values
        gaps_N = best_N - scores_NV.gather(1, emitted_N[:, None]).squeeze(1)
        gaps += gaps_N.tolist()
        differs += (scores_NV.argmax(dim=-1) != emitted_N).tolist()
        steps += (gaps_N / dtype_step(best_N, scale)).tolist()
    noise = math.sqrt(sum(apart) / len(apart)) if apart else 0.0
    tied = [count <= NEAR_STEPS or gap <= NEAR_NOISE * noise for count, gap in zip(steps, gaps, strict=True)]
    near = [place for place, tie in enumerate(tied) if differs[place] and tie]
    failures = [place for place, tie in enumerate(tied) if not tie]  # NaN fails too
    kind = str(scale if gaps else dtype or model.dtype).removeprefix("torch.")
    return Verdict(gaps, steps, near, failures, kind, noise)


def dtype_step(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance between neighbouring numbers of ``dtype`` at the size of ``values``.

    >>> dtype_step(torch.tensor([20.0, 1.0]), torch.bfloat16).tolist()
    [0.125, 0.0078125]
    """
    kind = torch.finfo(dtype)
    exponent = torch.frexp(values.double().abs().clamp_min(kind.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(values, kind.eps, dtype=torch.float64), exponent)


def first_difference(left: list[int], right: list[int]) -> int | None:
    """The first place where two texts differ, or None where they are the same.

    >>> first_difference([1, 2, 3], [1, 2]), first_difference([1], [1])
    (2, None)
    """
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return None if len(left) == len(right) else min(len(left), len(right))


def parts_at_near_tie(plain: list[int], other: list[int], verdict: Verdict) -> bool:
    """Whether ``other``, judged by ``verdict``, is the plain text but for near ties.

    A text that only ends sooner or later than the plain one parts at no token: its end is wrong, whatever the judge
    says of its tokens.

    >>> fine = Verdict([0.0], [0.0], [], [], "float32")
    >>> parts_at_near_tie([1, 2], [1, 3], fine), parts_at_near_tie([1, 2], [1], fine)
    (True, False)
    """
    place = first_difference(plain, other)
    return place is None or (verdict.ok and place < min(len(plain), len(other)))


def _readings(model: PreTrainedModel, sequence: Tensor, prompt_tokens: int) -> Iterator[tuple[int, Tensor, float]]:
    """What to judge by: places, logits [n, V], and the mean square by which a quantised model's readings differ."""
    total = sequence.shape[1] - 1  # the last token predicts nothing that was emitted
    ends = [*range(_CHUNK, total, _CHUNK), total] if total else []
    whole = _replay(model, sequence, prompt_tokens, ends)
    if not is_quantised(model):
        yield from ((place, logits, 0.0) for place, logits in whole)
        return
    singly = _replay(model, sequence, prompt_tokens, range(prompt_tokens, total + 1))
    for _, rows in whole:
        for row, (place, logits) in zip(rows, singly, strict=False):
            difference = row.float() - logits[0].float()
            yield place, logits, float((difference - difference.mean()).square().mean())


def _replay(
    model: PreTrainedModel, sequence: Tensor, prompt_tokens: int, ends: Iterable[int]
) -> Iterator[tuple[int, Tensor]]:
    """Yields (place of the first row, logits [n, V]) for every row that predicts an emitted token.

    ``ends`` are where the forwards end, that together read all tokens but the last.
    """
    parameters = inspect.signature(model.forward).parameters
    cache, begin = DynamicCache(config=model.config), 0
    for end in ends:
        wanted = max(0, end - max(begin, prompt_tokens - 1))
        options: dict[str, Any] = {cache_key(model): cache, "use_cache": True}
        if "logits_to_keep" in parameters:
            options["logits_to_keep"] = max(wanted, 1)
        logits = model(input_ids=sequence[:, begin:end], return_dict=True, **options).logits[0]
        begin = end
        if wanted:
            yield end - wanted, logits[-wanted:]


def _replayed_processors(config: GenerationConfig | None) -> LogitsProcessorList:
    processors = LogitsProcessorList()
    if config is None:
        return processors
    moved = [name for name, off in _MOVES_LOGITS.items() if getattr(config, name, None) not in (None, off)]
    if moved:
        raise UnsupportedCallError(
            f"the judge replays plain greedy decoding, but this model's generation config sets {', '.join(moved)}; "
            "clear them (model.generation_config) for the run and the judge alike"
        )
    penalty = getattr(config, "repetition_penalty", None)
    if penalty not in (None, 1.0):
        processors.append(RepetitionPenaltyLogitsProcessor(penalty))
    return processors


def _processed(processors: LogitsProcessorList, sequence: Tensor, start: int, scores: Tensor) -> Tensor:
    """Scores [n, V] as ``generate`` would see them, each row with the ids before it."""
    if not processors:
        return scores
    rows = [processors(sequence[:, : start + i + 1], row[None])[0] for i, row in enumerate(scores)]
    return torch.stack(rows)
