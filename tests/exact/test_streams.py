"""Streamers see what plain decoding shows them; a call that is cancelled, at any stage, leaves everything as it was."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    DynamicCache,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
    TextStreamer,
)
from transformers.generation.streamers import BaseStreamer

import dflash_hf
from dflash_hf.generation.record import last_trace
from dflash_hf.options import DFlashOptions
from dflash_hf.target.host import cache_key
from dflash_hf.target.trial import try_out
from tests.exact.same import PATTERNS, assert_equal_caches
from tests.exact.unchanged import Unchanged
from tests.scripted import scripted
from tests.tiny import VOCAB, prompt, tiny_target

NEW, IDS = 20, prompt()
OPTIONS = {"max_new_tokens": NEW, "do_sample": False}


class Recorder(BaseStreamer):
    """Writes down all that reaches a streamer."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def put(self, value):
        self.seen.append((value.device.type, value.dtype, value.tolist()))

    def end(self):
        self.seen.append("end")


@pytest.fixture(scope="module")
def pairs():
    """By kind of target: the attached model, its plain text, a drafter that is wrong at every fourth place."""
    made = {}

    def pair(kind):
        if kind not in made:
            model = tiny_target(kind)
            text = type(model).generate(model, IDS, **OPTIONS)
            drafter = scripted(model, text, lambda place: place % 4 == 0)
            try_out(dflash_hf.check_pair(model, drafter), drafter.config)  # a call counts its own forwards from here on
            made[kind] = dflash_hf.attach(model), text, drafter
        return made[kind]

    return pair


@pytest.fixture(scope="module")
def tokenizer():
    """A decoder that treats the beginning of a text apart, as most do; every fifth id ends a line."""
    words = {number: "\n" if number % 5 == 0 else f"▁w{number}" for number in range(2, VOCAB)}
    vocabulary = {
        "<pad>": 0,
        "<bos>": 1,
        **{f"{word}{'' if '▁' in word else number}": number for number, word in words.items()},
    }
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.decoder = decoders.Sequence(
        [decoders.Replace(f"\n{n}", "\n") for n in range(95, 0, -5)] + [decoders.Metaspace()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<bos>")


def both(model, text, kind, stream, **more):
    """What a plain and a drafted call leave in streamers made by ``stream``."""
    streams = [stream(), stream()]
    type(model).generate(model, IDS, streamer=streams[0], **OPTIONS, **more)
    model.generate(IDS, streamer=streams[1], assistant=scripted(model, text, PATTERNS[kind]), **OPTIONS, **more)
    return streams


@pytest.mark.parametrize("kind", ["all", "none", "spoiled"])
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.01}], ids=["at once", "stepwise"])
def test_a_streamer_is_given_what_plain_gives_it_call_by_call(pairs, kind, more):
    model, text, _ = pairs("llama")
    plain, drafted = both(model, text, kind, Recorder, **more)
    assert drafted.seen == plain.seen
    assert drafted.seen[0][2] == IDS.tolist() and drafted.seen[-1] == "end" and drafted.seen.count("end") == 1


@pytest.mark.parametrize("skip_prompt", [False, True])
def test_text_streamers_print_what_plain_prints(pairs, tokenizer, capsys, skip_prompt):
    model, text, _ = pairs("llama")
    printed = []
    for assistant in (None, scripted(model, text), scripted(model, text, PATTERNS["spoiled"])):
        streamer = TextStreamer(tokenizer, skip_prompt=skip_prompt)
        model.generate(IDS, streamer=streamer, assistant=assistant, **OPTIONS)
        printed.append(capsys.readouterr().out)
    assert printed[0].count("\n") > 2, "lines end inside blocks"
    assert printed[1:] == [printed[0]] * 2


def test_an_iterator_in_another_thread_yields_what_plain_yields(pairs, tokenizer):
    model, text, drafter = pairs("llama")
    pieces = []
    for assistant in (None, drafter):
        streamer = TextIteratorStreamer(tokenizer, timeout=60)
        more = {"streamer": streamer, "assistant": assistant, **OPTIONS}
        thread = threading.Thread(target=model.generate, args=(IDS,), kwargs=more)
        thread.start()
        pieces.append(list(streamer))
        thread.join()
    assert pieces[0] == pieces[1]


def test_a_criterion_that_asks_the_streamer_hears_of_every_token_before_the_next(pairs):
    """A stop button: the streamer sees a token and sets a flag, the criterion reads the flag."""
    model, text, _ = pairs("llama")
    for place in (1, 4, 5, 9):
        ended = []
        for assistant in (None, scripted(model, text)):
            stream, button = Recorder(), int(text[0, IDS.shape[1] + place])

            class Button(StoppingCriteria):
                def __call__(self, ids, scores, _stream=stream, _button=button, **_):
                    shown = any(each[2] == [_button] for each in _stream.seen[1:])
                    return torch.full((ids.shape[0],), shown)

            criteria = StoppingCriteriaList([Button()])
            output = model.generate(IDS, streamer=stream, stopping_criteria=criteria, assistant=assistant, **OPTIONS)
            ended.append((output.tolist(), stream.seen))
        assert ended[0] == ended[1]


def test_on_round_reports_rounds_with_their_times_as_they_finish(pairs):
    model, text, _ = pairs("llama")
    seen = []
    options = DFlashOptions(on_round=lambda record: seen.append((record.committed, record.round_ms)))
    model.generate(IDS, assistant=scripted(model, text), dflash=options, **OPTIONS)
    rounds = last_trace().rounds
    assert seen == [(record.committed, record.round_ms) for record in rounds], "times are counted once"
    assert last_trace().prefill_ms > 0
    assert all(0 < record.drafter_ms + record.head_ms + record.target_ms <= record.round_ms for record in rounds)


# Cancelling. A stage is (what is called, at which call it raises); "layer 2" at 1 is the prefill, at 2 a verification.


class Stopped(Exception):
    pass


class Alarm:
    """Passes all calls but one."""

    def __init__(self, error, at):
        self.error, self.left = error, at

    def __call__(self, *_, **__):
        self.left -= 1
        if self.left == 0:
            raise self.error


STAGES = [
    *[("put", at) for at in (1, 2, 3, 6, 1 + NEW)],
    ("end", 1),
    *[("processor", at) for at in (1, 2, 4, 9)],
    *[("criterion", at) for at in (1, 2, 4, 9)],
    *[("prefix", at) for at in (1, 5)],
    *[("round", at) for at in (1, 2)],
    *[(f"layer {index}", at) for index in range(4) for at in (1, 2, 3)],
    *[("head", at) for at in (1, 2, 3, 4)],  # the prefill's, the drafter's, the verification's, the drafter's
    *[("embedding", at) for at in (1, 2, 3)],
    *[("drafter fc", at) for at in (1, 2)],
    *[("drafter layer", at) for at in (1, 2)],
    *[("drafter norm", at) for at in (1, 2)],
]
BY_LAYER = [(name, at) for name, at in STAGES if name.startswith(("layer", "drafter fc")) or (name, at) == ("put", 3)]
CASES = [
    *[("llama", 1, stage, (KeyboardInterrupt, Stopped)[number % 2]) for number, stage in enumerate(STAGES)],
    *[("llama", 2, stage, KeyboardInterrupt) for stage in BY_LAYER],
    *[(target, turn, stage, Stopped) for target in ("mistral", "lfm2") for turn in (1, 2) for stage in BY_LAYER],
]


def _name(value):
    return f"{value[0]} {value[1]}" if isinstance(value, tuple) else getattr(value, "__name__", str(value))


@contextmanager
def alarmed(model, drafter, stage, alarm):
    """Arguments and hooks with which ``alarm`` is called at ``stage``."""
    modules = {
        "head": model.lm_head, "embedding": model.get_input_embeddings(), "drafter fc": drafter.fusion.fc,
        "drafter layer": drafter.layers[1], "drafter norm": drafter.norm,
        **{f"layer {index}": layer for index, layer in enumerate(model.get_decoder().layers)},
    }  # fmt: skip
    if stage in modules:
        handle = modules[stage].register_forward_pre_hook(lambda *_: alarm())
        try:
            yield {}
        finally:
            handle.remove()
        return
    stream = Recorder()
    if stage in ("put", "end"):
        setattr(stream, stage, alarm)
    yield {
        "put": lambda: {"streamer": stream},
        "end": lambda: {"streamer": stream},
        "processor": lambda: {"logits_processor": LogitsProcessorList([lambda ids, scores: alarm() or scores])},
        "criterion": lambda: {"stopping_criteria": StoppingCriteriaList([lambda ids, _: alarm() or ids[:, 0] < 0])},
        "prefix": lambda: {"prefix_allowed_tokens_fn": lambda row, ids: alarm() or list(range(VOCAB))},
        "round": lambda: {"dflash": DFlashOptions(on_round=alarm)},
    }[stage]()


@pytest.mark.parametrize(("target", "turn", "stage", "error"), CASES, ids=_name)
def test_a_cancelled_call_leaves_everything_as_it_was(pairs, target, turn, stage, error):
    model, text, drafter = pairs(target)
    cache, given = DynamicCache(config=model.config), IDS
    if turn == 2:  # someone else has read twelve tokens, more than a window's worth
        given = text[:, :15]
        with torch.no_grad():
            model(text[:, :12], use_cache=True, **{cache_key(model): cache})
    held = cache.get_seq_length()
    call = {**OPTIONS, "max_new_tokens": 7 + NEW - given.shape[1], "assistant": drafter, cache_key(model): cache}
    with (
        alarmed(model, drafter, stage[0], Alarm(error, stage[1])) as more,
        Unchanged(model, drafter, model.generation_config, more),
        pytest.raises(error),
    ):
        model.generate(given, **call, **more)
    _assert_prefix(model, cache, text, held)
    known = text[:, : cache.get_seq_length() + 1] if cache.get_seq_length() else IDS
    again = model.generate(known, **{**call, "max_new_tokens": 4})
    shared = min(text.shape[1], again.shape[1])
    assert torch.equal(again[:, :shared], text[:, :shared])


def _assert_prefix(model, cache, text, held):
    """The cache is what plain decoding has after so many tokens of the text, and at least what it was."""
    length = cache.get_seq_length()
    assert length >= held
    fresh = DynamicCache(config=model.config)
    if length:
        with torch.no_grad():
            model(text[:, :length], use_cache=True, **{cache_key(model): fresh})
    assert_equal_caches(cache, fresh)
