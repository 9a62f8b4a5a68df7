"""The text ends where plain decoding ends it: at every end-of-text id, length and position, in blocks and between."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from tests.exact.same import PATTERNS, assert_equal_outputs, assert_same, drafter_for
from tests.tiny import FAMILIES, build_target, prompt, tiny_target

PROMPT = prompt(seed=1028)  # its first 21 new tokens are all different
START = PROMPT.shape[1]
PLACES = 21
OUTPUTS = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


@cache
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def model():
    return target()


@cache
def plain(**options):
    return type(target()).generate(target(), PROMPT, do_sample=False, **OUTPUTS, **options)


@cache
def drafter(kind, block):
    return drafter_for(target(), plain(max_new_tokens=PLACES + 10).sequences, kind, block_size=block)


def drafted(kind, block, **options):
    used = drafter(kind, block)
    return generate(target(), PROMPT, assistant=used, do_sample=False, **OUTPUTS, **options)


def new_tokens(count=PLACES):
    return plain(max_new_tokens=PLACES + 10).sequences[0, START : START + count].tolist()


def test_the_texts_first_tokens_are_all_different():
    assert len(set(new_tokens())) == PLACES


@pytest.mark.parametrize(
    ("kind", "block"), [*((kind, block) for kind in ("all", "spoiled") for block in (2, 8, 16)), ("none", 8)]
)
def test_an_end_of_text_at_every_place(kind, block):
    """Scores, logits and the cache end there too: nothing of the rest of the block stays behind."""
    ends = set()
    places = range(PLACES) if kind != "none" else (0, 1, 7, 8, 9)
    for place in places:
        token = new_tokens()[place]
        expected = plain(max_new_tokens=PLACES + 3, eos_token_id=token)
        assert expected.sequences.shape[1] == START + place + 1
        ours = drafted(kind, block, max_new_tokens=PLACES + 3, eos_token_id=token)
        assert_equal_outputs(ours, expected)
        assert last_trace().tokens == new_tokens(place + 1)
        if place == 0:
            assert not last_trace().rounds, "the drafter is not asked"
        else:
            ends.add("accepted" if last_trace().rounds[-1].bonus is None else "bonus")
    assert ends == {"all": {"accepted", "bonus"}, "spoiled": {"accepted", "bonus"}, "none": {"bonus"}}[kind]


@pytest.mark.parametrize(
    ("kind", "block", "lengths"),
    [
        ("all", 2, range(1, 8)),
        ("all", 8, range(1, 31)),
        ("all", 16, (1, 15, 16, 17, 18, 30)),
        ("spoiled", 8, (1, 2, 3, 4, 7, 8, 9, 10, 17, 30)),
        ("spoiled", 16, (15, 16, 17, 30)),
        ("none", 8, (1, 2, 8, 9)),
    ],
)
def test_exactly_the_tokens_asked_for(kind, block, lengths):
    text = plain(max_new_tokens=PLACES + 10).sequences
    for new in lengths:
        ours = drafted(kind, block, max_new_tokens=new)
        assert torch.equal(ours.sequences, text[:, : START + new])
        cache = ours.get("cache", ours.get("past_key_values"))
        assert (len(ours.scores), len(ours.logits), cache.get_seq_length()) == (new, new, START + new - 1)
        if new in (1, 8, 9, 30):
            assert_equal_outputs(ours, plain(max_new_tokens=new))


ENDINGS = {
    "the earlier of several ids": lambda: {"eos_token_id": [new_tokens()[9], new_tokens()[4]]},
    "the first token": lambda: {"eos_token_id": new_tokens()[0]},
    "an id that stands in the prompt": lambda: {"eos_token_id": int(PROMPT[0, 2])},
    "an id the model does not know": lambda: {"eos_token_id": 5000},
    "the mask id": lambda: {"eos_token_id": 1},
    "the padding id": lambda: {"eos_token_id": new_tokens()[6], "pad_token_id": new_tokens()[6]},
    "ids in a config of the call": lambda: {
        "generation_config": GenerationConfig(
            max_new_tokens=20, eos_token_id=[new_tokens()[9], new_tokens()[11]], pad_token_id=0, **OUTPUTS
        )
    },
    "max_length": lambda: {"max_length": START + 11, "max_new_tokens": None},
    "max_length of the prompt and one": lambda: {"max_length": START + 1, "max_new_tokens": None},
    "max_length, and less to come": lambda: {"max_length": START + 11, "max_new_tokens": 6},
    "min_length and an id": lambda: {"min_length": START + 9, "eos_token_id": new_tokens()[4]},
    "min_new_tokens and an id": lambda: {"min_new_tokens": 9, "eos_token_id": new_tokens()[:4]},
    "min_new_tokens up to the end": lambda: {"min_new_tokens": 20, "eos_token_id": new_tokens()[4]},
    "a forced id": lambda: {"forced_eos_token_id": 3, "eos_token_id": 3, "max_new_tokens": 11},
    "a user's longer limit": lambda: _criteria(MaxLengthCriteria(START + 26)),
    "a user's shorter limit": lambda: _criteria(MaxLengthCriteria(START + 5)),
    "two limits of a user's": lambda: _criteria(MaxLengthCriteria(START + 25), MaxLengthCriteria(START + 22)),
    "a user's own ids": lambda: _criteria(EosTokenCriteria([new_tokens()[5]])),
    "a user's own ids in place of the option's": lambda: {
        "eos_token_id": new_tokens()[3], **_criteria(EosTokenCriteria([new_tokens()[5]])),
    },
    "a limit, an id and min_new_tokens": lambda: {
        "max_length": START + 17, "min_new_tokens": 7, "eos_token_id": [new_tokens()[2], new_tokens()[8]],
    },
}  # fmt: skip


def _criteria(*criteria):
    return {"stopping_criteria": StoppingCriteriaList(criteria)}


@pytest.mark.parametrize("kind", ["all", "spoiled"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_other_ends(model, ending, kind):
    def call():
        return {"max_new_tokens": 20, "do_sample": False, **OUTPUTS, **ENDINGS[ending]()}

    _, expected = assert_same(model, PROMPT, call, kind)
    if ending == "a user's longer limit":
        assert expected.sequences.shape[1] == START + 26, "the host lets it take the place of max_new_tokens"


@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("ids", [[7], [4, 9]])
def test_ends_that_only_the_models_generation_config_names(kind, ids):
    model = tiny_target()
    model.generation_config.eos_token_id = [new_tokens()[place] for place in ids]
    _, expected = assert_same(model, PROMPT, lambda: {"max_new_tokens": 20, "do_sample": False, **OUTPUTS}, kind)
    assert expected.sequences.shape[1] == START + ids[0] + 1


@pytest.fixture(scope="module")
def short():
    """A GPT-2 that knows 32 positions."""
    gpt2 = FAMILIES["gpt2"]
    return build_target(replace(gpt2, fields={**gpt2.fields, "n_positions": 32}))


@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("new", [11, 12, 13])
def test_the_last_position_of_a_table_is_reached(short, kind, new):
    """20 and 12 tokens fill the table; the last token of all is never run, so that one more can be had."""
    assert_same(short, prompt(20), lambda: {"max_new_tokens": new, "do_sample": False, **OUTPUTS}, kind)
    assert all(len(record.drafted) <= 12 for record in last_trace().rounds)


@pytest.mark.parametrize("kind", PATTERNS)
def test_beyond_the_last_position_happens_what_happens_in_plain_decoding(short, kind):
    class Recorder:
        def __init__(self):
            self.tokens = []

        def put(self, value):
            self.tokens += value.flatten().tolist()

        def end(self):
            raise AssertionError("the text has no end")

    text = type(short).generate(short, prompt(20), max_new_tokens=13, do_sample=False)
    used, shown = drafter_for(short, text, kind), []
    for more in ({}, {"assistant": used}):
        shown.append(Recorder())
        run = generate if more else type(short).generate
        with pytest.raises(IndexError, match="index out of range"):
            run(short, prompt(20), max_new_tokens=14, do_sample=False, streamer=shown[-1], **more)
    assert shown[1].tokens == shown[0].tokens == text[0].tolist()
