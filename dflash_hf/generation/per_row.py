"""Processors and criteria of a batch whose rows are decoded one after another: what each row gets, and what cannot be.

In comes what the host built for the whole batch; out goes the list for one row, which on [1, V] gives what the host's
gives for that row on [B, V]; or the reason why several rows cannot be had, in words. The list that came in is never
changed. Host classes are told by exact type, by name: a subclass, a class of the user's or one that a later release
brings is unknown, and so refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process, stopping_criteria

from dflash_hf.target.host import prefix_rule

__all__ = ["processors_for_row", "several_rows_refusal"]

# They keep nothing between calls that depends on a row: one object serves all rows.
_SHARED = frozenset(
    {
        "AlternatingCodebooksLogitsProcessor",
        "BarkEosPrioritizerLogitsProcessor",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "ExponentialDecayLengthPenalty",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "MinPLogitsWarper",
        "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "SuppressTokensAtBeginLogitsProcessor",
        "SuppressTokensLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopHLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TypicalLogitsWarper",
        "WatermarkLogitsProcessor",
        "WhisperTimeStampLogitsProcessor",
    }
)
_GOES_ON = "what it keeps of one row would reach the next"
_TWICE = "it takes two rows of scores for one of text"
_CHANNELS = "it takes the rows of a batch for the channels of one sound"
_REFUSED = {
    "ClassifierFreeGuidanceLogitsProcessor": _TWICE,
    "DiaClassifierFreeGuidanceLogitsProcessor": _TWICE,
    "DiaEOSChannelFilterLogitsProcessor": _CHANNELS,
    "DiaEOSDelayPatternLogitsProcessor": _CHANNELS,
    "SynthIDTextWatermarkLogitsProcessor": _GOES_ON,
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": _GOES_ON,
    "WhisperNoSpeechDetection": _GOES_ON,
}
_CRITERIA = frozenset({"EosTokenCriteria", "MaxLengthCriteria", "StopStringCriteria"})
_WAY_OUT = "Rows are decoded one after another here; pass one row per call"


def processors_for_row(processors: LogitsProcessorList, row: int, rows: int) -> LogitsProcessorList:
    """What ``processors``, made for ``rows`` rows, are for row ``row`` alone.

    Args:
        processors: as the host's ``generate`` prepares them; :func:`several_rows_refusal` has nothing against them.
        row: counted over the expanded batch (``num_return_sequences`` rows for each prompt).
        rows: of the expanded batch.
    """
    return LogitsProcessorList(_for_row(each, row, rows) for each in processors)


def several_rows_refusal(processors: Iterable[Any], criteria: Iterable[Any]) -> str | None:
    """Why a batch with these cannot be decoded row after row and come out as plain decoding would have it, or None."""
    for each in processors:
        name = _host_name(each, logits_process)
        if name is None:
            return f"the logits processor {_name(each)} with several rows: {_GOES_ON}. {_WAY_OUT}"
        if name not in _SHARED and name not in _ADAPTED:
            return f"{name} with several rows: {_REFUSED.get(name, 'it is new to this version')}. {_WAY_OUT}"
    for each in criteria:
        name = _host_name(each, stopping_criteria)
        if name not in _CRITERIA:
            return f"the stopping criterion {name or _name(each)} with several rows: {_GOES_ON}. {_WAY_OUT}"
    return None


def _for_row(processor: Any, row: int, rows: int) -> Any:
    adapt = _ADAPTED.get(type(processor).__name__)
    return processor if adapt is None else adapt(processor, row, rows)


def _prefix_constrained(processor: Any, row: int, _rows: int) -> Any:
    """The user's function is asked about its true prompt, as the host counts them: one for all its sequences.

    Sequences of one prompt are judged apart. Where other processors leave one of them, not all, no allowed token, the
    host draws from nothing and raises; here that sequence is forced to what is allowed, as a lone one is in the host.
    """
    allowed, sequences = prefix_rule(processor)
    prompt = row // sequences
    return type(processor)(lambda _, ids: allowed(prompt, ids), num_beams=1)


class _RowOf(LogitsProcessor):
    """Row ``row`` of what a processor makes of the whole batch, given the row alone.

    For a processor that treats prompts with several rows as its release happens to: transformers 5.24 gives each row
    its prompt's ids, 5.18 gives them to the first rows and leaves the others alone.
    """

    def __init__(self, processor: Any, row: int, rows: int) -> None:
        self.processor, self.row, self.rows = processor, row, rows

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """``input_ids`` [1, S] and ``scores`` [1, V] to scores [1, V]."""
        batch: Tensor = self.processor(input_ids.expand(self.rows, -1), scores.expand(self.rows, -1))
        return batch[self.row : self.row + 1]


def _encoder_ngrams(processor: Any, row: int, rows: int) -> Any:
    mine = copy.copy(processor)
    mine.batch_size = 1
    mine.generated_ngrams = [processor.generated_ngrams[row * processor.batch_size // rows]]
    return mine


def _repetition(processor: Any, row: int, _rows: int) -> Any:
    """What it leaves out is one number or None (transformers 5.18), or the padding on each row's left [B] (5.24)."""
    if not isinstance(processor.prompt_ignore_length, Tensor):
        return processor
    mine = copy.copy(processor)
    mine.prompt_ignore_length = processor.prompt_ignore_length[row : row + 1]
    return mine


_ADAPTED: dict[str, Callable[[Any, int, int], Any]] = {
    "EncoderNoRepeatNGramLogitsProcessor": _encoder_ngrams,
    "EncoderRepetitionPenaltyLogitsProcessor": _RowOf,
    "PrefixConstrainedLogitsProcessor": _prefix_constrained,
    "RepetitionPenaltyLogitsProcessor": _repetition,
}


def _host_name(each: Any, module: Any) -> str | None:
    """The class's name if it is one of ``module``'s own, not a subclass of it or anything else."""
    kind = type(each)
    return kind.__name__ if getattr(module, kind.__name__, None) is kind else None


def _name(each: Any) -> str:
    """What a user calls their object: the name of its class, or of the function it is."""
    return str(getattr(each, "__name__", type(each).__name__))
