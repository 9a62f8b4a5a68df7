"""User-made processors and mixes: called once per committed token, in order, with what plain decoding shows them."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, WatermarkingConfig
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from tests.exact.processor_rows import EVERYTHING, START, only_every_fifth
from tests.exact.same import PATTERNS, assert_same, drafter_for
from tests.scripted import scripted
from tests.tiny import VOCAB, greedy, prompt, tiny_target


@pytest.fixture(scope="module")
def model():
    return tiny_target()


class _Watching(LogitsProcessor):
    """Keeps what it was called with; a subclass says what it makes of the scores."""

    def __init__(self) -> None:
        self.ids, self.shapes = [], []

    def __call__(self, input_ids, scores):
        self.ids.append(input_ids.tolist())
        self.shapes.append((scores.shape, scores.dtype, scores.device))
        return self.change(input_ids, scores)


class _Grammar(_Watching):
    """Allows one residue class of ids after another: a state that advances with every call."""

    def change(self, input_ids, scores):
        return scores.masked_fill(torch.arange(VOCAB) % 5 != len(self.ids) % 5, -float("inf"))


class _Automaton(_Watching):
    """A grammar that keeps its state and reads only the newest token, as matchers of JSON and tool calls do."""

    def change(self, input_ids, scores):
        self.state = (getattr(self, "state", 0) * 7 + int(input_ids[0, -1])) % 11
        return scores.masked_fill(torch.arange(VOCAB) % 11 == self.state, -float("inf"))


class _InPlace(_Watching):
    """Writes into its argument, which plain decoding then also returns as ``logits``."""

    def change(self, input_ids, scores):
        scores[:, (int(input_ids[0, -1]) * 3) % VOCAB] += 20.0
        return scores


class _InPlaceAndNew(_Watching):
    """Writes into its argument and returns another tensor."""

    def change(self, input_ids, scores):
        scores[:, 45] = -float("inf")
        return scores * 0.5


class _Double(_Watching):
    """Returns scores of another type."""

    def change(self, input_ids, scores):
        return scores.double().roll(1 + len(self.ids), dims=-1)


class _Cooling(TemperatureLogitsWarper):
    """Of a class that reads nothing but the scores, and yet looks at the place: only exact types are trusted."""

    def __init__(self) -> None:
        super().__init__(2.0)

    def __call__(self, input_ids, scores):
        return super().__call__(input_ids, scores).roll(input_ids.shape[1], dims=-1)


def _function(input_ids, scores):
    """Not a LogitsProcessor at all: the host calls whatever is in the list."""
    return scores.roll(int(input_ids[0, -1]) % 3, dims=-1)


@pytest.mark.parametrize("kind", ["all", "none", "spoiled"])
@pytest.mark.parametrize("make", [_Grammar, _Automaton, _InPlace, _InPlaceAndNew, _Double, _Cooling, lambda: _function])
def test_a_users_processor_sees_and_gives_what_it_does_in_plain_decoding(model, make, kind):
    made = []

    def call():
        made.append(make())
        return {**EVERYTHING, "logits_processor": LogitsProcessorList([made[-1]])}

    drafted, plain = assert_same(model, prompt(), call, kind)
    assert not torch.equal(plain.sequences, greedy(model, prompt(), 10)), "it must change the text"
    assert (sum(record.accepted for record in last_trace().rounds) > 0) == (kind in ("all", "spoiled"))
    if isinstance(made[0], _Watching):
        assert made[1].ids == made[0].ids, "committed tokens only, once each, in order"
        assert made[1].shapes == made[0].shapes


DRAWN = {"do_sample": True, "temperature": 0.4, "top_k": 20}
MIXES = {
    "penalty, ngrams, bad words, normalised": {
        "repetition_penalty": 1.4,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[45], [80, 66]],
        "renormalize_logits": True,
    },
    "guidance and a constraint": {"guidance_scale": 1.4, "prefix_allowed_tokens_fn": only_every_fifth},
    "an end held off, pushed, then forced": {
        "eos_token_id": [66, 3],
        "min_new_tokens": 4,
        "exponential_decay_length_penalty": (2, 1.1),
        "forced_eos_token_id": 3,
    },
    "begun twice": {"begin_suppress_tokens": [45, 80], "forced_bos_token_id": 5, "suppress_tokens": [17]},
    "penalties of the prompt": {"encoder_repetition_penalty": 2.0, "encoder_no_repeat_ngram_size": 2, "min_length": 9},
    "a bias, invalid values removed, a watermark": {
        "sequence_bias": {(7,): -float("inf"), (17, 80): 5.0},
        "remove_invalid_values": True,
        "watermarking_config": WatermarkingConfig(bias=3.0, seeding_scheme="selfhash"),
    },
    "drawn with one outcome": {**DRAWN, "top_p": 0.9, "min_p": 1.0, "repetition_penalty": 1.3},
    "drawn with one outcome, at once": {**DRAWN, "top_k": 1, "top_h": 0.9, "typical_p": 0.9},
}


@pytest.mark.parametrize(
    ("length", "with_own", "kind"), [(7, False, "all"), (7, False, "spoiled"), (1, False, "all"), (1, True, "spoiled")]
)
@pytest.mark.parametrize("mix", MIXES)
def test_several_processors_at_once(model, mix, length, with_own, kind):
    def call():
        own = {"logits_processor": LogitsProcessorList([_Grammar()])} if with_own else {}
        return {**EVERYTHING, **MIXES[mix], **own}

    assert_same(model, prompt(length), call, kind)
    walked = "vectorised" if mix.endswith("at once") and not with_own else "stepwise"
    assert walked in last_trace().acceptance


def test_a_users_instance_takes_the_place_of_the_options(model):
    """The host keeps one processor of a type: the user's."""

    def call():
        own = RepetitionPenaltyLogitsProcessor(3.0)
        return {**EVERYTHING, "repetition_penalty": 1.1, "logits_processor": LogitsProcessorList([own])}

    _, plain = assert_same(model, prompt(), call)
    other = type(model).generate(model, prompt(), **EVERYTHING, repetition_penalty=1.1)
    assert not torch.equal(plain.scores[0], other.scores[0])


class _Wants(LogitsProcessor):
    def __call__(self, input_ids, scores, beam):
        return scores


class _Breaks(_Watching):
    def change(self, input_ids, scores):
        if len(self.ids) == 6:
            raise KeyError("no rule for this token")
        return scores


@pytest.mark.parametrize(("make", "error"), [(_Wants, ValueError), (_Breaks, KeyError)])
@pytest.mark.parametrize("kind", ["all", "spoiled"])
def test_an_error_of_a_processor_is_the_users_to_see_and_leaves_nothing_behind(model, make, error, kind):
    made, text = [make(), make()], greedy(model, prompt(), 10)
    drafter = drafter_for(model, text, kind)
    runs = (type(model).generate, lambda *args, **call: generate(*args, assistant=drafter, **call))
    raised = []
    for run, processor in zip(runs, made, strict=True):
        with pytest.raises(error) as caught:
            run(model, prompt(), **EVERYTHING, logits_processor=LogitsProcessorList([processor]))
        raised.append(str(caught.value))
    assert raised[0] == raised[1]
    if make is _Breaks:
        assert made[0].ids == made[1].ids
    assert torch.equal(generate(model, prompt(), assistant=drafter, max_new_tokens=10, do_sample=False), text)


@pytest.mark.parametrize("negative", [{}, {"negative_prompt_ids": prompt(3, seed=5)}], ids=["prompt", "negative"])
def test_guidance_does_not_reach_the_drafter(model, negative):
    """Guidance runs the target once more per token; those forwards must not be injected."""
    call = {"max_new_tokens": 12, "do_sample": False, "guidance_scale": 1.5, **negative}
    drafter, positions = scripted(model, type(model).generate(model, prompt(), **call), PATTERNS["spoiled"]), []
    inject = drafter.inject
    drafter.inject = lambda taps, at, context: (positions.extend(at[0].tolist()), inject(taps, at, context))
    generate(model, prompt(), assistant=drafter, **call)
    assert positions == list(range(len(positions))), "every committed token once, in order"
    assert START < len(positions) < START + 12
