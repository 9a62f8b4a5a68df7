"""What is not drafted is refused by name before work; with an attached default it runs plainly, and says so."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    MaxTimeCriteria,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    StaticCache,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)

import dflash_hf
from dflash_hf.errors import OptionsError, UnsupportedCallError
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from tests.scripted import scripted
from tests.tiny import greedy, prompt, tiny_target

REFUSED = [
    ({"num_beams": 2}, "num_beams=2"),
    ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences=2"),
    ({"use_cache": False}, "use_cache=False"),
    ({"cache_implementation": "static"}, "'static'"),
    ({"prompt_lookup_num_tokens": 3}, "prompt lookup"),
    ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
    ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
    ({"assistant_ensemble_weight": 0.5}, "assistant_ensemble_weight"),
    ({"static_cache": True}, "a static cache"),
]


@pytest.fixture
def model():
    return tiny_target()


@pytest.fixture
def text(model):
    return greedy(model, prompt(), 24)


def written(model, options):
    """Options as ``generate`` takes them: a static cache is made for the call."""
    options = dict(options)
    if options.pop("static_cache", False):
        options[cache_key(model)] = StaticCache(config=model.config, max_cache_len=64)
    return {"max_new_tokens": 8, "do_sample": False, **options}


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[next(iter(options)) for options, _ in REFUSED])
def test_what_is_not_drafted_is_refused_before_work_or_runs_plainly(model, text, options, reason):
    drafter, forwards = scripted(model, text), []
    dflash_hf.attach(model, drafter)
    handle = model.register_forward_pre_hook(lambda *_: forwards.append(1))
    with pytest.raises(UnsupportedCallError, match=reason):
        model.generate(prompt(), assistant=drafter, **written(model, options))
    assert not forwards
    with pytest.warns(UserWarning, match=reason) as caught:
        torch.manual_seed(0)
        output = model.generate(prompt(), **written(model, options))
    handle.remove()
    assert caught[0].filename == __file__, "the warning points at the call"
    assert reason in last_trace().fallback and last_trace().loop == "plain"
    torch.manual_seed(0)
    plain = type(model).generate(model, prompt(), **written(model, options))
    for mine, theirs in ((output, plain),):
        assert torch.equal(getattr(mine, "sequences", mine), getattr(theirs, "sequences", theirs))
    assert drafter.calls == 0


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


def test_one_warning_per_reason(model, text):
    drafter = scripted(model, text)
    dflash_hf.attach(model, drafter)
    batch = prompt().expand(2, -1)
    with pytest.warns(UserWarning, match="without the attached drafter.*2 rows"):
        output = model.generate(batch, max_new_tokens=24, do_sample=False)
    assert torch.equal(output[0], text[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(batch, max_new_tokens=4, do_sample=False)
    with pytest.raises(UnsupportedCallError, match="2 rows"):
        model.generate(batch, max_new_tokens=4, assistant=drafter)
    assert drafter.calls == 0


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
