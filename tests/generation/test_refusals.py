"""What is not drafted is refused by name before work; with an attached default it runs plainly, and says so."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    CompileConfig,
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    MaxTimeCriteria,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)
from transformers.cache_utils import StaticLayer

import dflash_hf
from dflash_hf.errors import DFlashWarning, OptionsError, UnsupportedCallError
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from tests.exact.test_targets_refused import no_forwards
from tests.scripted import scripted
from tests.tiny import greedy, prompt, tiny_target


@pytest.fixture
def model():
    return tiny_target()


@pytest.fixture
def text(model):
    return greedy(model, prompt(), 24)


def test_token_healing_and_stop_strings_without_a_tokenizer_are_refused(model, text):
    dflash_hf.attach(model)
    for options, reason in (({"token_healing": True}, "token_healing"), ({"stop_strings": ["%"]}, "tokenizer")):
        with pytest.raises(UnsupportedCallError, match=reason):
            model.generate(prompt(), max_new_tokens=3, assistant=scripted(model, text), **options)


def test_a_target_without_a_cache_is_refused_before_work():
    config = OpenAIGPTConfig(vocab_size=96, n_embd=32, n_layer=4, n_head=4, n_positions=64)
    model = dflash_hf.attach(OpenAIGPTLMHeadModel(config).eval())
    with pytest.raises(UnsupportedCallError, match="keeps no cache"):
        model.generate(prompt(), max_new_tokens=4, assistant=scripted(model, [2] * 20))


def test_arguments_that_contradict_each_other_are_refused(model, text):
    drafter = scripted(model, text)
    dflash_hf.attach(model)
    for options in (
        {"assistant": drafter, "assistant_model": drafter},
        {"assistant": "z-lab/some-drafter"},
        {"assistant": drafter, "num_assistant_tokens": -1},
    ):
        with pytest.raises(OptionsError):
            model.generate(prompt(), max_new_tokens=3, **options)
    with pytest.raises(UnsupportedCallError, match="exclude each other"):
        model.generate(prompt(), max_new_tokens=3, assistant=drafter, custom_generate=dflash_hf.generate)


def test_the_hosts_loop_is_refused_where_it_would_give_other_text(model, text):
    drafter = scripted(model, text)
    dflash_hf.attach(model, drafter)
    cache = DynamicCache(config=model.config)
    model(prompt(), **{cache_key(model): cache})
    for options in (
        {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(9)])},
        {"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(2.0)])},
        {"stop_strings": ["%"]},
        {"max_time": 5.0},
        {"guidance_scale": 1.5},
        {cache_key(model): cache},
        {"dflash": {"max_draft_tokens": 2}},
    ):
        with pytest.raises(UnsupportedCallError, match="Leave speculation_type out"):
            model.generate(prompt(), max_new_tokens=9, speculation_type="dflash", assistant=drafter, **options)
    with pytest.raises(UnsupportedCallError, match="needs the model attached"):
        dflash_hf.DFlashModel(tiny_target(), drafter).generate(prompt(), max_new_tokens=9, speculation_type="dflash")


def test_the_hosts_loop_is_found_in_the_config_and_takes_the_cap(model, text):
    drafter = scripted(model, text)
    dflash_hf.attach(model, drafter)
    config = GenerationConfig(max_new_tokens=24, speculation_type="dflash", num_assistant_tokens=2)
    assert torch.equal(model.generate(prompt(), generation_config=config), text)
    assert last_trace() is None, "our loop left no trace of it"
    assert drafter.calls == 8, "23 tokens after the first, three a round"


def test_an_instance_generate_from_before_is_used_and_put_back(model, text):
    calls = []

    def counting(*args, **kwargs):
        calls.append(1)
        return type(model).generate(model, *args, **kwargs)

    model.generate = partial(counting)
    before = model.generate
    dflash_hf.attach(model)
    dflash_hf.attach(model)
    assert torch.equal(model.generate(prompt(), max_new_tokens=24, do_sample=False), text)
    assert calls == [1]
    dflash_hf.detach(model)
    assert model.generate is before


@pytest.mark.parametrize("loop", ["the host's", "ours, compiled"])
def test_a_last_layer_that_nobody_hands_out_is_refused_before_work_and_left_to_plain_decoding(model, text, loop):
    if loop == "the host's":
        options = {"speculation_type": "dflash"}
    elif not hasattr(StaticLayer, "crop"):
        pytest.skip("this release drops no tokens from a static cache; runs on transformers 5.24 (make test)")
    else:
        compiling = CompileConfig(backend="eager", mode=None, fullgraph=True)
        compiling._compile_all_devices = True
        options = {"cache_implementation": "static", "compile_config": compiling}
    call = {"max_new_tokens": 24, "do_sample": False, **options}
    drafter = scripted(model, text, target_layer_ids=[0, 3], last_tap="raw")
    dflash_hf.attach(model)
    with no_forwards(model), pytest.raises(UnsupportedCallError, match="before the final norm"):
        model.generate(prompt(), assistant=drafter, **call)
    dflash_hf.attach(model, drafter)
    if loop == "the host's":
        with pytest.warns(DFlashWarning, match="running without the attached drafter: .*before the final norm"):
            assert torch.equal(model.generate(prompt(), **call), text)
        return
    told = []
    streamer = SimpleNamespace(put=lambda value: told.append(value.shape[-1]), end=lambda: None)
    with pytest.warns(DFlashWarning, match="running without the attached drafter: .*before the final norm"):
        assert torch.equal(model.generate(prompt(), streamer=streamer, **{**call, "max_new_tokens": 1}), text[:, :8])
    assert told == [7, 1], "the prompt once, as plain decoding shows it"
