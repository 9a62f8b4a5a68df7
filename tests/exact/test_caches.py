"""Kinds of caches: dynamic, static through the host's compiled call, offloaded; what cannot drop tokens is refused."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from transformers import CompileConfig, DynamicCache, StaticCache, cache_utils
from transformers.cache_utils import StaticLayer

from dflash_hf.errors import UnsupportedCallError
from dflash_hf.generation import sequential
from dflash_hf.generation.attach import attach, generate
from dflash_hf.target.host import cache_key, chunks_go_on
from dflash_hf.target.trial import try_out
from dflash_hf.target.view import view_target
from tests.exact.same import PATTERNS, assert_equal_caches, assert_equal_outputs, assert_same, drafter_for
from tests.scripted import scripted
from tests.tiny import CONFIGS, greedy, prompt, tiny_target

NEW = 30
RETURNED = {"return_dict_in_generate": True, "output_scores": True}
needs_static_crop = pytest.mark.skipif(
    not hasattr(StaticLayer, "crop"),
    reason="this release drops no tokens from a static cache; runs on transformers 5.24 (make test)",
)
FULL = ("llama", "qwen3", "qwen3_moe", "gpt2")
WINDOWED = ("mistral", "gemma3", "gpt_oss")
MIXED = ("lfm2", "qwen3_5", "falcon_h1", "zamba2", "zaya")  # with convolutions or recurrent states


def options(**more):
    return {"max_new_tokens": NEW, "do_sample": False, **RETURNED, **more}


@pytest.fixture(scope="module")
def llama():
    return attach(tiny_target())


@pytest.mark.parametrize("kind", sorted(PATTERNS))
def test_dynamic_by_name(llama, kind):
    assert_same(llama, prompt(), lambda: options(cache_implementation="dynamic"), kind)


@needs_static_crop
@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("pattern", ["all", "spoiled", "none"])
def test_a_static_cache_of_a_full_attention_target(kind, pattern):
    model = attach(tiny_target(kind))
    assert_same(model, prompt(), lambda: options(cache_implementation="static"), pattern)


@needs_static_crop
@pytest.mark.parametrize("new", range(1, 20))
def test_a_static_cache_never_overflows(llama, new):
    """The cache is exactly as long as the text: a block at its end must be cut, not written past it."""
    call = lambda: {  # noqa: E731
        "max_new_tokens": new, "do_sample": False, cache_key(llama): StaticCache(llama.config, max_cache_len=6 + new),
    }  # fmt: skip
    assert_same(llama, prompt(), call, "all", block_size=16)
    assert_same(llama, prompt(), call, "spoiled", block_size=16)


@needs_static_crop
@pytest.mark.parametrize("place", [3, 6, 9])
def test_a_users_static_cache_that_just_holds_the_text_is_enough(llama, place):
    """The text ends before the budget does: the cache, not the budget, is what a block must fit into."""
    plain = type(llama).generate(llama, prompt(), max_new_tokens=NEW, do_sample=False)
    ends = int(plain[0, 7 + place])
    new = plain[0, 7:].tolist().index(ends) + 1
    call = lambda: {  # noqa: E731
        "max_new_tokens": NEW, "do_sample": False, "eos_token_id": ends,
        cache_key(llama): StaticCache(llama.config, max_cache_len=6 + new),
    }  # fmt: skip
    assert_same(llama, prompt(), call, "all")


@needs_static_crop
def test_everything_returned_with_a_static_cache():
    model = attach(tiny_target())
    model.set_attn_implementation("eager")
    asked = dict.fromkeys(("output_logits", "output_hidden_states", "output_attentions"), True)
    assert_same(model, prompt(), lambda: options(cache_implementation="static", **asked))


@needs_static_crop
def test_a_users_static_cache_over_turns(llama):
    key = cache_key(llama)
    caches = [StaticCache(llama.config, max_cache_len=80) for _ in range(2)]
    plain = type(llama).generate(llama, prompt(), **options(**{key: caches[0]}))
    drafter = drafter_for(llama, plain.sequences, "spoiled")
    drafted = llama.generate(prompt(), assistant=drafter, **options(**{key: caches[1]}))
    assert_equal_outputs(drafted, plain)
    more = torch.cat([plain.sequences, prompt(3, seed=8)], dim=1)
    plain = type(llama).generate(llama, more, **options(**{key: caches[0]}))
    drafter = drafter_for(llama, plain.sequences, "spoiled")
    assert_equal_outputs(llama.generate(more, assistant=drafter, **options(**{key: caches[1]})), plain)


@pytest.mark.slow
@needs_static_crop
def test_a_static_cache_runs_through_the_hosts_compiled_call(llama):
    """On a device where the host compiles; here the eager backend stands for a compiler, told to take the CPU."""
    config = CompileConfig(backend="eager", mode=None, fullgraph=True)
    config._compile_all_devices = True
    model = attach(tiny_target())
    drafted, _ = assert_same(
        model, prompt(), lambda: options(cache_implementation="static", compile_config=config), "spoiled"
    )
    chosen = {"output_hidden_states": [1, 3]}
    assert_same(
        model, prompt(), lambda: options(cache_implementation="static", compile_config=config, **chosen), "spoiled"
    )
    compiled, before = model.get_compiled_call(config), torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert compiled is model._compiled_call
    drafter = drafter_for(model, drafted.sequences, "spoiled")
    model.generate(prompt(), assistant=drafter, **options(cache_implementation="static", compile_config=config))
    again = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert before > 0, "nothing was compiled"
    assert again == before, "a second call with the same shapes compiles nothing anew"


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
@pytest.mark.parametrize("kind", WINDOWED + MIXED)
def test_a_static_cache_of_other_than_full_attention_is_refused_before_work(kind, filled):
    model = attach(tiny_target(kind))
    assert_refused(model, "static", cache_implementation="static")
    held = StaticCache(model.config, max_cache_len=64)
    if filled:
        with torch.no_grad():
            model(prompt(5), use_cache=True, **{cache_key(model): held})
    assert_refused(model, "static", **{cache_key(model): held})


@pytest.mark.skipif(chunks_go_on(), reason="this release goes on from a filled cache; runs with make test-oldest")
def test_chunks_over_a_filled_cache_are_refused_on_releases_that_read_it_again(llama):
    cache = DynamicCache(config=llama.config)
    text = llama.generate(prompt(), max_new_tokens=3, do_sample=False, **{cache_key(llama): cache})
    assert_refused(llama, "prefill_chunk_size", prefill_chunk_size=2, **{cache_key(llama): cache})
    assert cache.get_seq_length() == text.shape[1] - 1


@pytest.mark.skipif(
    hasattr(StaticLayer, "crop"), reason="this release drops tokens from static caches; runs with make test-oldest"
)
def test_a_static_cache_is_refused_on_releases_that_cannot_crop_it(llama):
    assert_refused(llama, "static", cache_implementation="static")


@pytest.mark.parametrize("name", ["quantized", "offloaded_static", "sliding_window", "hybrid_chunked"])
def test_caches_that_cannot_drop_tokens_are_refused_by_name(llama, name):
    assert_refused(llama, name, cache_implementation=name)


@pytest.mark.skipif(
    not hasattr(cache_utils, "Fp8QuantizedLayer"),
    reason="this release quantises with packages that are not installed; runs on transformers 5.24 (make test)",
)
def test_a_users_quantised_cache_is_refused_and_left_empty(llama):
    cache = cache_utils.QuantizedCache(backend="fp8", config=llama.config)
    type(llama).generate(llama, prompt(), max_new_tokens=2, **{cache_key(llama): copy.deepcopy(cache)})
    assert_refused(llama, "cannot drop tokens", **{cache_key(llama): cache})
    assert cache.get_seq_length() == 0


def assert_refused(model, reason, **asked):
    forwards = []
    handle = model.register_forward_pre_hook(lambda *_: forwards.append(1))
    with pytest.raises(UnsupportedCallError, match=reason):
        model.generate(prompt(), assistant=drafter_for(model, prompt(), "random"), max_new_tokens=5, **asked)
    handle.remove()
    assert not forwards


class _Stream(nullcontext):
    def wait_stream(self, _other):
        pass


@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])
def test_an_offloaded_cache_as_far_as_a_cpu_can_show(kind, monkeypatch):
    """Its layers move to the CPU after each use, on a stream of their own: streams are stood in for."""
    for owner, name in ((torch, "Stream"), (torch.cuda, "Stream"), (torch.cuda, "default_stream")):
        monkeypatch.setattr(owner, name, lambda *_, **__: _Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    assert_same(attach(tiny_target(kind)), prompt(), lambda: options(cache_implementation="offloaded"))


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("given", [False, True], ids=["returned", "given"])
def test_a_cache_comes_back_in_its_mode_and_no_longer_than_plains(kind, given):
    """`assert_same` compares every field of every layer: also `record_past` and what a window let go."""
    model = attach(tiny_target(kind))

    def call():
        own = {cache_key(model): DynamicCache(config=model.config.get_text_config())} if given else {}
        return options(**own)

    drafted, _ = assert_same(model, prompt(), call, "all")
    for layer in drafted[cache_key(model)].layers:
        if getattr(layer, "is_sliding", False):
            assert layer.keys.shape[-2] < layer.sliding_window and not layer.record_past


@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2", "qwen3_5"])
def test_prefill_chunks_are_injected_one_by_one(kind, chunk):
    model, counts = attach(tiny_target(kind)), []
    ids = prompt(20)
    drafter = drafter_for(model, type(model).generate(model, ids, max_new_tokens=9, do_sample=False), "spoiled")
    inject = drafter.inject
    drafter.inject = lambda taps, *rest: (counts.append(taps.shape[1]), inject(taps, *rest))[1]
    drafted = model.generate(ids, assistant=drafter, max_new_tokens=9, do_sample=False, prefill_chunk_size=chunk)
    plain = type(model).generate(model, ids, max_new_tokens=9, do_sample=False, prefill_chunk_size=chunk)
    assert torch.equal(drafted, plain)
    prefill = -(-20 // chunk)
    assert sum(counts[:prefill]) == 20 and max(counts) <= max(chunk, 8)


def test_a_long_prompt_is_injected_part_by_part(llama, monkeypatch):
    """No more than so many tokens' taps stand side by side, without chunks of the prefill too."""
    monkeypatch.setattr(sequential, "_INJECTED_AT_ONCE", 16)
    ids, counts = prompt(50), []
    plain = type(llama).generate(llama, ids, max_new_tokens=9, do_sample=False)
    drafter = drafter_for(llama, plain, "all")
    inject = drafter.inject
    drafter.inject = lambda taps, *rest: (counts.append(taps.shape[1]), inject(taps, *rest))[1]
    assert torch.equal(llama.generate(ids, assistant=drafter, max_new_tokens=9, do_sample=False), plain)
    assert counts[:4] == [16, 16, 16, 2]


class Broken(Exception):
    pass


def breaking(module, at):
    """Its forward, which fails at call ``at`` before it does anything."""
    real, calls = module.forward, []

    def forward(*args, **kwargs):
        calls.append(1)
        if len(calls) == at:
            raise Broken
        return real(*args, **kwargs)

    return patch.object(module, "forward", forward)


@pytest.mark.parametrize("at", [1, 2, 3], ids=["prefill", "verify", "second verify"])
@pytest.mark.parametrize("part", ["indexer", "mlp"], ids=["before the index", "after it"])
@pytest.mark.parametrize("cache_class", [DynamicCache, pytest.param(StaticCache, marks=needs_static_crop)])
@pytest.mark.parametrize("kind", ["deepseek_v32", pytest.param("minimax_m3", marks=pytest.mark.slow)])
def test_an_interrupted_round_leaves_keys_and_index_of_sparse_attention_equally_long(kind, cache_class, part, at):
    """Keys go into the cache before those of the index: stopped between the two, each goes back by its own part."""
    model = tiny_target(kind)
    config, key, start = model.config, cache_key(model), prompt().shape[1] - 2
    sizes = {} if cache_class is DynamicCache else {"max_cache_len": 64}
    text, held, afresh = greedy(model, prompt(), 20), *(cache_class(config=config, **sizes) for _ in range(2))
    with torch.no_grad():
        model(text[:, :start], use_cache=True, **{key: held})
    layer = model.model.layers[1]
    broken = layer.self_attn.indexer if part == "indexer" else layer.mlp
    drafter = scripted(model, text, PATTERNS["spoiled"])
    try_out(view_target(model), drafter.config)
    with breaking(broken, at), pytest.raises(Broken):
        generate(model, prompt(), assistant=drafter, **options(**{key: held}))
    read = int(held.get_seq_length())
    assert read == start if at == 1 else read > start
    with torch.no_grad():
        model(text[:, :read], use_cache=True, **{key: afresh})
    assert_equal_caches(held, afresh)
