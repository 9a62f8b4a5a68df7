"""Processors see committed tokens only, once each, in order; what they see and give is what plain decoding gives."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from tests.scripted import scripted
from tests.tiny import VOCAB, greedy, prompt, tiny_target


@pytest.fixture(scope="module")
def model():
    return attach(tiny_target())


class _Grammar(LogitsProcessor):
    """Allows one residue class of ids after another: a state that advances with every call."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, input_ids, scores):
        self.lengths.append(input_ids.shape[1])
        forbidden = torch.arange(VOCAB) % 5 != len(self.lengths) % 5
        return scores.masked_fill(forbidden, -float("inf"))


def both(model, spoil=lambda place: place % 4 == 0, new=40, **options):
    """Plain and drafted text under options; values that are functions make fresh objects for each run."""

    def fresh():
        return {key: value() if callable(value) else value for key, value in options.items()}

    expected = greedy(model, prompt(), new, **fresh())
    drafter = scripted(model, expected, spoil)
    return expected, model.generate(prompt(), max_new_tokens=new, do_sample=False, assistant=drafter, **fresh())


@pytest.mark.parametrize("spoil", [lambda place: False, lambda place: place % 4 == 0, lambda place: True])
def test_a_stateful_processor_sees_what_plain_shows_it(model, spoil):
    processors = []

    def grammar():
        processors.append(_Grammar())
        return LogitsProcessorList([processors[-1]])

    expected, output = both(model, spoil, logits_processor=grammar)
    assert torch.equal(output, expected)
    assert processors[0].lengths == processors[1].lengths


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[5], [9, 11]]},
        {"suppress_tokens": [3, 40, 41]},
        {"sequence_bias": {(7,): 9.0}},
        {"guidance_scale": 1.5},
        {"min_new_tokens": 12, "eos_token_id": 7},
        {"forced_eos_token_id": 3},
        {"exponential_decay_length_penalty": (5, 1.3), "eos_token_id": 7},
    ],
    ids=lambda options: next(iter(options)),
)
def test_processors_by_option_give_plain_text(model, options):
    expected, output = both(model, **options)
    assert torch.equal(output, expected)
    assert "stepwise" in last_trace().acceptance
    assert sum(record.accepted for record in last_trace().rounds) > 0, "the draft must have been at work"


def test_guidance_does_not_reach_the_drafter(model):
    """Guidance runs the target once more per token; those forwards must not be injected."""
    expected = greedy(model, prompt(), 12, guidance_scale=1.5)
    drafter, positions = scripted(model, expected, lambda place: place % 4 == 0), []
    inject = drafter.inject
    drafter.inject = lambda taps, at, context: (positions.extend(at[0].tolist()), inject(taps, at, context))
    model.generate(prompt(), max_new_tokens=12, do_sample=False, assistant=drafter, guidance_scale=1.5)
    assert positions == list(range(len(positions))), "every committed token once, in order"


def test_scores_and_logits_are_those_of_plain(model):
    for extra in ({}, {"repetition_penalty": 1.3}):
        options = {
            "max_new_tokens": 20,
            "do_sample": False,
            "return_dict_in_generate": True,
            "output_scores": True,
            "output_logits": True,
            **extra,
        }
        plain = type(model).generate(model, prompt(), **options)
        drafter = scripted(model, plain.sequences, lambda place: place % 3 == 0)
        ours = model.generate(prompt(), assistant=drafter, **options)
        assert torch.equal(ours.sequences, plain.sequences)
        for name in ("scores", "logits"):
            assert len(ours[name]) == len(plain[name]) == 20
            for mine, theirs in zip(ours[name], plain[name], strict=True):
                torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
