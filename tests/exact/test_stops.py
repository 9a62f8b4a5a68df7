"""Stop strings, time limits and user-made criteria: asked once per committed token, in order, as in plain decoding."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import GenerationConfig, PreTrainedTokenizerFast, StoppingCriteria, StoppingCriteriaList
from transformers.generation import stopping_criteria as host
from transformers.generation.stopping_criteria import StopStringCriteria

from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from tests.exact.same import PATTERNS, assert_same, drafter_for
from tests.tiny import VOCAB, greedy, prompt, tiny_target

PROMPT = prompt(seed=1028)  # its first 21 new tokens are all different
START = PROMPT.shape[1]
OUTPUTS = {"return_dict_in_generate": True, "output_scores": True}
BASE = {"max_new_tokens": 22, "do_sample": False}


@pytest.fixture(scope="module")
def model():
    return tiny_target()


@pytest.fixture(scope="module")
def text(model):
    return greedy(model, PROMPT, 30)[0].tolist()


@pytest.fixture(scope="module")
def tokenizer():
    """Mostly three letters an id, no two alike: a stop string may begin and end inside a token."""
    names = ["".join(letters) for letters in itertools.product("abcde", repeat=3)]
    words = dict(zip([*names[: VOCAB - 8], *"abcdef"], range(2, VOCAB), strict=True))
    inner = Tokenizer(models.BPE({"<pad>": 0, "<bos>": 1, **words}, merges=[]))
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<bos>")


# Where a stop string lies: its first new token and how many of that one's letters are left out, the last and the same.
# Token 0 is the prefill's; with all accepted, tokens 1 to 8 are the first round (8 is its bonus), 9 to 16 the second.
SPANS = {
    "the first token": (0, 0, 0, 0),
    "inside a token": (4, 1, 4, 0),
    "two tokens inside a block": (5, 0, 6, 0),
    "the middle of one to the middle of the next": (6, 1, 7, 1),
    "across two blocks": (8, 0, 9, 0),
    "over four tokens": (7, 1, 10, 2),
    "a whole block long": (1, 0, 8, 0),
    "begun in the prompt": (-2, 1, 0, 2),
    "all but a letter in the prompt": (-3, 0, 0, 2),
    "on the bonus": (8, 0, 8, 0),
}


def stop_string(tokenizer, text, first, skipped, last, dropped):
    letters = tokenizer.decode(text[START + first : START + last + 1])
    return letters[skipped : len(letters) - dropped]


@pytest.mark.parametrize(
    ("where", "kind"),
    [("keyword", "all"), ("keyword", "spoiled"), ("config of the call", "all"), ("config of the model", "spoiled")],
)
def test_stop_strings_end_the_text_where_plain_ends_it(model, text, tokenizer, where, kind):
    ended = set()
    for span in SPANS.values():
        stop = stop_string(tokenizer, text, *span)
        call = {**BASE, **OUTPUTS, "tokenizer": tokenizer}
        if where == "keyword":
            call["stop_strings"] = stop
        elif where == "config of the call":
            call["generation_config"] = GenerationConfig(stop_strings=[stop, "ffff"], pad_token_id=0)
        else:
            model.generation_config.stop_strings = [stop]
        try:
            _, plain = assert_same(model, PROMPT, lambda call=call: dict(call), kind)
        finally:
            model.generation_config.stop_strings = None
        ended.add(plain.sequences.shape[1] - START - 1)
        assert ended <= set(range(11)), "every one of them ends the text"
    assert {0, 6, 8, 9, 10} <= ended


def test_a_stop_string_of_the_prompt_alone_ends_nothing(model, text, tokenizer):
    stop = tokenizer.decode(text[START - 2 : START])
    call = {**BASE, **OUTPUTS, "tokenizer": tokenizer, "stop_strings": stop}
    _, plain = assert_same(model, PROMPT, lambda: dict(call))
    assert plain.sequences.shape[1] == START + 22


def test_a_stop_string_that_no_token_can_end_is_refused_as_in_plain_decoding(model, text, tokenizer):
    call = {**BASE, "tokenizer": tokenizer, "stop_strings": "<never>"}
    for more in ({}, {"assistant": drafter_for(model, torch.tensor([text]), "all")}):
        run = generate if more else type(model).generate
        with pytest.raises(ValueError, match="unable to identify tokens"):
            run(model, PROMPT, **call, **more)


@pytest.mark.parametrize("with_option", [False, True], ids=["alone", "in place of the option"])
def test_a_users_stop_string_criterion(model, text, tokenizer, with_option):
    """The host keeps one criterion of a type, the user's: the option then has no say."""

    def call():
        own = StopStringCriteria(tokenizer, [tokenizer.decode(text[START + 9 : START + 11])])
        option = {"stop_strings": [tokenizer.decode(text[START + 4])], "tokenizer": tokenizer} if with_option else {}
        return {**BASE, **OUTPUTS, "stopping_criteria": StoppingCriteriaList([own]), **option}

    _, plain = assert_same(model, PROMPT, call)
    assert plain.sequences.shape[1] == START + 11


class _Clock:
    """A clock that moves by one second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.mark.parametrize("kind", ["all", "spoiled"])
@pytest.mark.parametrize("limit", [0.5, 3.5, 8.5, 12.5, 100.0])
def test_a_time_limit_is_looked_at_after_every_token(model, monkeypatch, kind, limit):
    clocks = []

    def call():
        clocks.append(_Clock())
        monkeypatch.setattr(host, "time", SimpleNamespace(time=clocks[-1]))
        return {**BASE, **OUTPUTS, "max_time": limit}

    _, plain = assert_same(model, PROMPT, call, kind)
    assert plain.sequences.shape[1] == START + min(int(limit) + 1, 22)
    assert clocks[0].now == clocks[1].now


class _Watching(StoppingCriteria):
    """Keeps what it is called with. ``rule(ids, scores, calls)`` answers; ``shape`` makes it what a user returns."""

    def __init__(self, rule, shape=lambda ended: torch.tensor([ended])) -> None:
        self.rule, self.shape, self.seen = rule, shape, []

    def __call__(self, input_ids, scores, **more):
        shown = None if scores is None else [(each.shape, each.dtype, float(each.max())) for each in scores]
        self.seen.append((input_ids.tolist(), shown, sorted(more)))
        return self.shape(bool(self.rule(input_ids[0].tolist(), scores, len(self.seen))))


RULES = {
    "the last id": lambda text: lambda ids, scores, calls: ids[-1] == text[START + 5],
    "the last id of all": lambda text: lambda ids, scores, calls: ids[-1] == text[START],
    "any new id": lambda text: lambda ids, scores, calls: text[START + 12] in ids[START:],
    "any id, the prompt's too": lambda text: lambda ids, scores, calls: text[2] in ids,
    "a length": lambda text: lambda ids, scores, calls: len(ids) >= START + 11,
    "a length that is never met": lambda text: lambda ids, scores, calls: len(ids) > 900,
    "the number of calls": lambda text: lambda ids, scores, calls: calls == 10,
    "the newest scores": lambda text: lambda ids, scores, calls: scores is not None and float(scores[-1].max()) < 13.0,
    "all scores": lambda text: lambda ids, scores, calls: scores is not None and len(scores) == 9,
}
SHAPES = {
    "one a row": lambda ended: torch.tensor([ended]),
    "one for all": lambda ended: torch.tensor(ended),
    "a bool": lambda ended: ended,
    "a column": lambda ended: torch.tensor([[ended]]),
}


def watched(made, *criteria, **more):
    """Arguments with fresh criteria, which are kept in ``made``, one list a run."""
    made.append([make() for make in criteria])
    return {**BASE, **more, "stopping_criteria": StoppingCriteriaList(made[-1])}


@pytest.mark.parametrize("outputs", [{}, OUTPUTS], ids=["", "with scores"])
@pytest.mark.parametrize("rule", RULES)
def test_a_users_criterion_is_asked_as_in_plain_decoding(model, text, rule, outputs):
    for kind in ("all", "spoiled") if outputs else ("spoiled",):
        made = []
        assert_same(
            model, PROMPT, lambda made=made: watched(made, lambda: _Watching(RULES[rule](text)), **outputs), kind
        )
        (plain,), (ours,) = made
        assert [ids for ids, _, _ in ours.seen] == [ids for ids, _, _ in plain.seen], "once a token, in order"
        for (_, mine, extra), (_, theirs, other) in zip(ours.seen, plain.seen, strict=True):
            assert extra == other
            assert (mine is None) == (theirs is None) == (not outputs)
            for one, two in zip(mine or [], theirs or [], strict=True):
                assert one[:2] == two[:2] and one[2] == pytest.approx(two[2], abs=1e-4)
        assert "stepwise" in last_trace().acceptance


@pytest.mark.parametrize("shape", SHAPES)
def test_a_criterion_may_answer_in_any_shape_plain_takes(model, text, shape):
    rule = RULES["the last id"](text)
    _, plain = assert_same(model, PROMPT, lambda: watched([], lambda: _Watching(rule, SHAPES[shape]), **OUTPUTS))
    assert plain.sequences.shape[1] == START + 6


@pytest.mark.parametrize("kind", PATTERNS)
def test_several_criteria_at_once_are_all_asked_after_every_token(model, text, tokenizer, kind):
    made = []

    def call():
        return watched(
            made, lambda: _Watching(RULES["any new id"](text)), lambda: _Watching(RULES["the number of calls"](text)),
            eos_token_id=text[START + 15], max_time=600.0, stop_strings=["ffff"], tokenizer=tokenizer, **OUTPUTS,
        )  # fmt: skip

    _, plain = assert_same(model, PROMPT, call, kind)
    assert plain.sequences.shape[1] == START + 10
    seen = [[ids for ids, _, _ in each.seen] for each in (*made[0], *made[1])]
    assert seen[0] == seen[1] == seen[2] == seen[3] and len(seen[0]) == 10


@pytest.mark.parametrize("kind", ["all", "spoiled"])
def test_an_error_of_a_criterion_is_the_users_to_see(model, text, kind):
    def rule(ids, scores, calls):
        if calls == 6:
            raise KeyError("no rule for this token")

    drafter, made = drafter_for(model, torch.tensor([text]), kind), []
    for more in ({}, {"assistant": drafter}):
        run = generate if more else type(model).generate
        with pytest.raises(KeyError, match="no rule"):
            run(model, PROMPT, **watched(made, lambda: _Watching(rule)), **more)
    assert made[0][0].seen == made[1][0].seen
    output = generate(model, PROMPT, assistant=drafter, **BASE)
    assert output[0].tolist() == text[: START + 22], "the next call is right"
