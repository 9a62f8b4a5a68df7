"""Many calls on the same objects: threads do not mix, memory stays flat, nothing of the user's is written to."""

from __future__ import annotations

import gc
import sys
import threading
from contextlib import suppress

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TextStreamer,
)

import dflash_hf
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from tests.exact.same import PATTERNS
from tests.exact.unchanged import Unchanged
from tests.scripted import scripted
from tests.tiny import letters, prompt, tiny_target

NEW, IDS = 12, prompt()
OPTIONS = {"max_new_tokens": NEW, "do_sample": False}


@pytest.fixture(scope="module", params=["llama", "mistral"])
def pair(request):
    model = tiny_target(request.param)
    text = type(model).generate(model, IDS, max_new_tokens=2 * NEW + 2, do_sample=False)
    drafter = scripted(model, text, PATTERNS["spoiled"])
    return dflash_hf.attach(model, drafter), drafter, text


@pytest.fixture(scope="module")
def tokenizer():
    return letters()


@pytest.mark.parametrize("cached", [False, True], ids=["without caches", "a cache a thread"])
def test_threads_share_a_pair_and_each_has_its_own_text_cache_and_trace(pair, cached):
    model, _, text = pair
    found = {}

    def run(name):
        ids, texts = IDS, []
        more = {cache_key(model): DynamicCache(config=model.config)} if cached else {}
        for _ in range(2):  # two turns of one conversation, by full ids
            ids = model.generate(ids, **OPTIONS, **more)
            texts.append((ids, last_trace().tokens))
            ids = text[:, : ids.shape[1] + 1]
        found[name] = texts, [cache.get_seq_length() for cache in more.values()]

    threads = [threading.Thread(target=run, args=(name,)) for name in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as many switches between threads as can be had
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(found) == 3, "a thread died"
    for texts, lengths in found.values():
        for end, (ids, traced) in zip((7 + NEW, 8 + 2 * NEW), texts, strict=True):
            assert torch.equal(ids, text[:, :end])
            assert traced == text[0, end - NEW : end].tolist()
        assert lengths in ([], [7 + 2 * NEW])


def _alive() -> tuple[int, int]:
    """Tensors that are reachable, and entries in the tables of our modules."""
    gc.collect()
    tensors = sum(isinstance(each, torch.Tensor) for each in gc.get_objects())
    tables = [
        len(value)
        for name, module in sorted(sys.modules.items())
        if name.split(".")[0] == "dflash_hf"
        for value in vars(module).values()
        if isinstance(value, dict | list | set)
    ]
    return tensors, sum(tables)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*reduce_op:FutureWarning")  # a deprecated name that gc comes across in torch
@pytest.mark.parametrize("pair", ["mistral"], indirect=True)
def test_two_hundred_calls_leave_nothing_behind(pair, tokenizer):
    """Calls of every kind: cached, sampled, with a processor, with stop strings, cancelled, refused."""
    model, drafter, text = pair
    criteria = StoppingCriteriaList([MaxLengthCriteria(10)])
    kinds = (
        lambda: {**OPTIONS, "max_new_tokens": 3},
        lambda: {"max_new_tokens": 3, "do_sample": True, "repetition_penalty": 1.2},
        lambda: {**OPTIONS, "max_new_tokens": 3, cache_key(model): DynamicCache(config=model.config)},
        lambda: {**OPTIONS, "stopping_criteria": criteria, "return_dict_in_generate": True, "output_scores": True},
        lambda: {**OPTIONS, "max_new_tokens": 3, "stop_strings": ["zz"], "tokenizer": tokenizer},
        lambda: {**OPTIONS, "max_new_tokens": 3, "streamer": _Broken()},
        lambda: {**OPTIONS, "num_beams": 2},
    )

    def calls(count):
        for number in range(count):
            with suppress(KeyboardInterrupt, dflash_hf.UnsupportedCallError):
                model.generate(IDS, assistant=drafter, **kinds[number % len(kinds)]())

    calls(2 * len(kinds))
    with Unchanged(model, drafter, draws=True):
        before = _alive()
        calls(200)
        assert _alive() == before


class _Broken(TextStreamer):
    def __init__(self) -> None:
        self.left = 3

    def put(self, value):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_nothing_a_user_passed_is_written_to(pair, tokenizer):
    model, drafter, text = pair
    processors = LogitsProcessorList([TemperatureLogitsWarper(0.7)])
    config = GenerationConfig(
        max_new_tokens=NEW, eos_token_id=[90, 91], pad_token_id=0, stop_strings=["zz", "yy"], suppress_tokens=[3, 4],
        bad_words_ids=[[5, 6]], sequence_bias={(7,): 0.5}, dflash={"max_draft_tokens": 5},
    )  # fmt: skip
    call = {
        "attention_mask": torch.ones_like(IDS),
        "position_ids": torch.arange(7)[None],
        "logits_processor": processors,
        "stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(18)]),
        "tokenizer": tokenizer,
        "generation_config": config,
    }
    plain = type(model).generate(model, IDS, **call)
    lists = {
        "stop_strings": ["zz"], "eos_token_id": [90, 91], "bad_words_ids": [[5, 6]], "suppress_tokens": [3],
        "tokenizer": tokenizer, "dflash": {"max_draft_tokens": 3}, **OPTIONS,
    }  # fmt: skip
    for assistant in ({}, {"assistant": drafter}, {"assistant_model": drafter}):
        with Unchanged(model, drafter, IDS, call, lists, model.config, model.generation_config, drafter.config):
            assert torch.equal(model.generate(IDS, **assistant, **call), plain)
            model.generate(IDS, **assistant, **lists)
    assert last_trace().metrics()["num_spec_steps"] > 0


def test_the_first_call_with_a_drafter_changes_neither_of_the_two(pair):
    model, _, text = pair
    fresh = scripted(model, text)
    with Unchanged(model, fresh):
        model.generate(IDS, assistant=fresh, **OPTIONS)
    assert fresh.calls
