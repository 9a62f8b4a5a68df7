"""Every logits processor of transformers, by each door it can come through: a ``generate`` option, a user's instance.

A row says how the call is written and what the same call is without the processor; the tests hold drafted against
plain, and plain with against plain without, for a row that changes nothing would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, WatermarkingConfig
from transformers import SynthIDTextWatermarkingConfig as SynthID
from transformers.generation import logits_process as host

from tests.tiny import VOCAB, greedy, prompt

START = prompt().shape[1]
NEW = 10
EOS = 66  # the tiny llama's fourth token after `prompt()`
EVERYTHING = {
    "max_new_tokens": NEW,
    "do_sample": False,
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
}
STOPS = {"eos_token_id": EOS}
DRAWN = {"do_sample": True, "top_k": 0}
CONSTRUCTED: dict[str, type] = {  # all but the abstract base
    name: each
    for name, each in vars(host).items()
    if isinstance(each, type) and issubclass(each, host.LogitsProcessor) and each is not host.LogitsProcessor
}


@dataclass(frozen=True, eq=False)
class Row:
    """One processor through one door."""

    name: str  # of the class
    door: str  # "option" or "instance"
    label: str
    call: Callable[[PreTrainedModel], dict[str, Any]]  # makes the arguments anew: processors keep state
    without: dict[str, Any] = field(default_factory=dict)  # the same call without the processor
    ids: Callable[[PreTrainedModel], Tensor] = lambda model: prompt()
    raises: type[Exception] | None = None  # what plain `generate` does with it on text at one row
    seen: Callable[[Any], Any] | None = None  # what a processor that leaves the scores alone has to show

    @property
    def missing(self) -> str | None:
        """Why this row cannot run on the installed transformers, or None."""
        return None if self.name in CONSTRUCTED else f"this transformers has no {self.name}; runs on 5.24 (make test)"

    def __str__(self) -> str:
        return f"{self.name}-{self.label}"


def option(name: str, without: dict[str, Any] | None = None, **options: Any) -> Row:
    """The processor that ``generate`` builds from ``options`` (functions are called for a fresh value)."""
    without, ids = without or {}, options.pop("ids", lambda model: prompt())
    label = next(iter(options))

    def call(_: PreTrainedModel) -> dict[str, Any]:
        return {
            **without,
            **{key: value() if key == "watermarking_config" else value for key, value in options.items()},
        }

    return Row(name, "option", label, call, without, ids)


def instance(
    name: str, make: Callable[[PreTrainedModel], Any], without: dict[str, Any] | None = None, **more: Any
) -> Row:
    """A processor that the user makes and passes in ``logits_processor``."""
    without, label = without or {}, more.pop("label", "instance")

    def call(model: PreTrainedModel) -> dict[str, Any]:
        return {**without, "logits_processor": LogitsProcessorList([make(model)])}

    return Row(name, "instance", label, call, without, **more)


def long_text(model: PreTrainedModel) -> Tensor:
    """A prompt whose continuation repeats pairs of it."""
    return greedy(model, prompt(), 29)


def one_token(_: PreTrainedModel) -> Tensor:
    return prompt(1)


def only_every_fifth(_row: int, ids: Tensor) -> list[int]:
    """Allowed ids change with the length, as a grammar's do."""
    return [token for token in range(VOCAB) if token % 5 == len(ids) % 5]


def _whisper(_: PreTrainedModel) -> Any:
    ids = GenerationConfig(no_timestamps_token_id=60, eos_token_id=50, max_initial_timestamp_index=9)
    return host.WhisperTimeStampLogitsProcessor(ids, begin_index=START)


def _negative(model: PreTrainedModel) -> Any:
    return host.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, model, unconditional_ids=prompt(4, seed=8))


def _synth_id(_: PreTrainedModel) -> Any:
    return host.SynthIDTextWatermarkLogitsProcessor(
        ngram_len=3, keys=[11, 5, 82, 7], sampling_table_size=1024, sampling_table_seed=0, context_history_size=16,
        device="cpu",
    )  # fmt: skip


def _watermark(**changes: Any) -> Callable[[PreTrainedModel], Any]:
    return lambda model: host.WatermarkLogitsProcessor(VOCAB, "cpu", bias=9.0, **changes)


NEGATIVE = prompt(4, seed=8)
PADDED = NEGATIVE.clone().index_fill_(1, NEGATIVE.new_tensor([0]), 0)
ROWS: list[Row] = [
    option("MinLengthLogitsProcessor", STOPS, min_length=START + 8),
    instance("MinLengthLogitsProcessor", lambda m: host.MinLengthLogitsProcessor(START + 8, EOS), STOPS),
    option("MinNewTokensLengthLogitsProcessor", STOPS, min_new_tokens=8),
    instance(
        "MinNewTokensLengthLogitsProcessor", lambda m: host.MinNewTokensLengthLogitsProcessor(START, 8, EOS), STOPS
    ),
    option("TemperatureLogitsWarper", {"do_sample": True, "top_k": 1}, temperature=0.3),
    instance("TemperatureLogitsWarper", lambda m: host.TemperatureLogitsWarper(0.3)),
    option("RepetitionPenaltyLogitsProcessor", repetition_penalty=1.7),
    instance("RepetitionPenaltyLogitsProcessor", lambda m: host.RepetitionPenaltyLogitsProcessor(1.7)),
    instance(
        "RepetitionPenaltyLogitsProcessor",
        lambda m: host.RepetitionPenaltyLogitsProcessor(1.7, prompt_ignore_length=START),
        label="without the prompt",
    ),
    option("EncoderRepetitionPenaltyLogitsProcessor", encoder_repetition_penalty=3.0),
    instance(
        "EncoderRepetitionPenaltyLogitsProcessor", lambda m: host.EncoderRepetitionPenaltyLogitsProcessor(3.0, prompt())
    ),
    # Options of sampling with values that leave one outcome, so that the draw is the same in every run.
    option("TopPLogitsWarper", top_p=0.01, **DRAWN),
    instance("TopPLogitsWarper", lambda m: host.TopPLogitsWarper(0.5)),
    option("TopKLogitsWarper", top_k=1, do_sample=True),
    instance("TopKLogitsWarper", lambda m: host.TopKLogitsWarper(4)),
    option("TopHLogitsWarper", top_h=0.001, **DRAWN),
    instance("TopHLogitsWarper", lambda m: host.TopHLogitsWarper(0.5)),
    option("MinPLogitsWarper", min_p=1.0, **DRAWN),
    instance("MinPLogitsWarper", lambda m: host.MinPLogitsWarper(0.2)),
    option("TypicalLogitsWarper", typical_p=0.001, **DRAWN),
    instance("TypicalLogitsWarper", lambda m: host.TypicalLogitsWarper(0.4)),
    option("EpsilonLogitsWarper", epsilon_cutoff=0.999, **DRAWN),
    instance("EpsilonLogitsWarper", lambda m: host.EpsilonLogitsWarper(0.05)),
    option("EtaLogitsWarper", {**DRAWN, "temperature": 0.001}, eta_cutoff=0.9),
    instance("EtaLogitsWarper", lambda m: host.EtaLogitsWarper(0.5)),
    option("NoRepeatNGramLogitsProcessor", no_repeat_ngram_size=2),
    instance("NoRepeatNGramLogitsProcessor", lambda m: host.NoRepeatNGramLogitsProcessor(2)),
    option("EncoderNoRepeatNGramLogitsProcessor", encoder_no_repeat_ngram_size=2, ids=long_text),
    instance(
        "EncoderNoRepeatNGramLogitsProcessor",
        lambda m: host.EncoderNoRepeatNGramLogitsProcessor(2, long_text(m)),
        ids=long_text,
    ),
    option("SequenceBiasLogitsProcessor", sequence_bias={(7,): 6.0, (80, 66): -20.0}),
    instance("SequenceBiasLogitsProcessor", lambda m: host.SequenceBiasLogitsProcessor([[[80, 66], -20.0]])),
    option("NoBadWordsLogitsProcessor", bad_words_ids=[[45], [80, 66]]),
    instance("NoBadWordsLogitsProcessor", lambda m: host.NoBadWordsLogitsProcessor([[45], [80, 66]])),
    option("PrefixConstrainedLogitsProcessor", prefix_allowed_tokens_fn=only_every_fifth),
    instance(
        "PrefixConstrainedLogitsProcessor",
        lambda m: host.PrefixConstrainedLogitsProcessor(only_every_fifth, num_beams=1),
    ),
    option("ForcedBOSTokenLogitsProcessor", forced_bos_token_id=33, ids=one_token),
    instance("ForcedBOSTokenLogitsProcessor", lambda m: host.ForcedBOSTokenLogitsProcessor(33), ids=one_token),
    option("ForcedEOSTokenLogitsProcessor", forced_eos_token_id=3),
    instance("ForcedEOSTokenLogitsProcessor", lambda m: host.ForcedEOSTokenLogitsProcessor(START + NEW, [3])),
    option("InfNanRemoveLogitsProcessor", {"bad_words_ids": [[45]]}, remove_invalid_values=True),
    instance("InfNanRemoveLogitsProcessor", lambda m: host.InfNanRemoveLogitsProcessor(), {"suppress_tokens": [45]}),
    option("ExponentialDecayLengthPenalty", {"eos_token_id": 7}, exponential_decay_length_penalty=(3, 1.6)),
    instance("ExponentialDecayLengthPenalty", lambda m: host.ExponentialDecayLengthPenalty((3, 1.6), 7, START)),
    option("LogitNormalization", renormalize_logits=True),
    instance("LogitNormalization", lambda m: host.LogitNormalization()),
    option("SuppressTokensAtBeginLogitsProcessor", begin_suppress_tokens=[45, 3]),
    instance("SuppressTokensAtBeginLogitsProcessor", lambda m: host.SuppressTokensAtBeginLogitsProcessor([45], START)),
    instance(
        "SuppressTokensAtBeginLogitsProcessor",
        lambda m: host.SuppressTokensAtBeginLogitsProcessor([80], START + 2),
        label="inside a block",
    ),
    option("SuppressTokensLogitsProcessor", suppress_tokens=[80, 3]),
    instance("SuppressTokensLogitsProcessor", lambda m: host.SuppressTokensLogitsProcessor([80, 3])),
    option("UnbatchedClassifierFreeGuidanceLogitsProcessor", guidance_scale=1.5),
    option("UnbatchedClassifierFreeGuidanceLogitsProcessor", negative_prompt_ids=NEGATIVE, guidance_scale=1.5),
    option(
        "UnbatchedClassifierFreeGuidanceLogitsProcessor",
        negative_prompt_attention_mask=(PADDED != 0).long(),
        negative_prompt_ids=PADDED,
        guidance_scale=2.0,
    ),
    instance("UnbatchedClassifierFreeGuidanceLogitsProcessor", _negative),
    option("WatermarkLogitsProcessor", watermarking_config=lambda: WatermarkingConfig(bias=9.0)),
    instance("WatermarkLogitsProcessor", _watermark()),
    instance("WatermarkLogitsProcessor", _watermark(seeding_scheme="selfhash", context_width=3), label="selfhash"),
    option(
        "SynthIDTextWatermarkLogitsProcessor", watermarking_config=lambda: SynthID(ngram_len=3, keys=[11, 5, 82, 7])
    ),
    instance("SynthIDTextWatermarkLogitsProcessor", _synth_id),
    # Made for speech and audio models; these run on text all the same ...
    instance("WhisperTimeStampLogitsProcessor", _whisper),
    instance(
        "WhisperNoSpeechDetection",
        lambda m: host.WhisperNoSpeechDetection(no_speech_token=5, begin_index=1),
        ids=one_token,
        seen=lambda processor: processor.no_speech_prob,
    ),
    instance("AlternatingCodebooksLogitsProcessor", lambda m: host.AlternatingCodebooksLogitsProcessor(START, 30, 33)),
    instance("BarkEosPrioritizerLogitsProcessor", lambda m: host.BarkEosPrioritizerLogitsProcessor(EOS, 0.02), STOPS),
    instance("DiaEOSChannelFilterLogitsProcessor", lambda m: host.DiaEOSChannelFilterLogitsProcessor(1, 60)),
    instance("DiaEOSDelayPatternLogitsProcessor", lambda m: host.DiaEOSDelayPatternLogitsProcessor([0], 3, START + 6)),
    # ... and these ask for twice the rows, or for one row a channel, which text does not have.
    instance(
        "ClassifierFreeGuidanceLogitsProcessor",
        lambda m: host.ClassifierFreeGuidanceLogitsProcessor(1.5),
        raises=ValueError,
    ),
    instance(
        "DiaClassifierFreeGuidanceLogitsProcessor",
        lambda m: host.DiaClassifierFreeGuidanceLogitsProcessor(1.5),
        raises=ValueError,
    ),
    instance(
        "DiaEOSChannelFilterLogitsProcessor",
        lambda m: host.DiaEOSChannelFilterLogitsProcessor(2, 60),
        label="two channels",
        raises=RuntimeError,
    ),
    instance(
        "DiaEOSDelayPatternLogitsProcessor",
        lambda m: host.DiaEOSDelayPatternLogitsProcessor([0, 2], 3, START + 6),
        label="two channels",
        raises=RuntimeError,
    ),
]
WORKING = [row for row in ROWS if row.raises is None]
RAISING = [row for row in ROWS if row.raises is not None]
