"""Modes that are not drafted: refused by name before any forward, or, with an attached default, what plain does."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, T5Config, T5ForConditionalGeneration, TextStreamer

import dflash_hf
from dflash_hf.errors import UnsupportedCallError, UnsupportedTargetError
from dflash_hf.generation.record import last_trace
from tests.exact.unchanged import Unchanged
from tests.scripted import scripted
from tests.tiny import prompt, tiny_target

IDS = prompt()
SMALL = ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=32)  # else it takes most of the memory there is
MODES = {  # by what the refusal names: the options that ask for it
    r"beam_search \(num_beams=2\)": {"num_beams": 2},
    r"beam_search \(num_beams=3\)": {"num_beams": 3, "num_return_sequences": 2, "early_stopping": True},
    "beam_sample": {"num_beams": 2, "do_sample": True},
    "group_beam_search": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "constrained_beam_search": {"force_words_ids": [[5]], "num_beams": 2},
    r"constrained_beam_search \(num_beams=1\)": {"constraints": [object()]},
    "contrastive_search": {"penalty_alpha": 0.6, "top_k": 4},
    "dola_generation": {"dola_layers": "high"},
    "dola_generation.*": {"dola_layers": [1], "do_sample": True},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "use_mtp": {"use_mtp": True},
    "assistant_early_exit": {"assistant_early_exit": 2},
    "assistant_ensemble_weight": {"assistant_ensemble_weight": 0.5},
    "token_healing": {"token_healing": True},
    "use_cache=False": {"use_cache": False},
    "cache_implementation='paged'": {"cache_implementation": "paged", "continuous_batching_config": SMALL},
    "synced_gpus": {"synced_gpus": True},
}
BY_CALL_ONLY = {"synced_gpus", "cache_implementation='paged'", r"constrained_beam_search \(num_beams=1\)"}


@pytest.fixture
def pair():
    model = tiny_target()
    text = type(model).generate(model, IDS, max_new_tokens=6, do_sample=False)
    drafter = scripted(model, text)
    forwards: list[int] = []
    for module in (model, drafter):
        module.register_forward_pre_hook(lambda *_: forwards.append(1))
    return dflash_hf.attach(model, drafter), drafter, forwards


def _written(model, options, where):
    """The same options in the call, in a config of the call, or in the model's own config."""
    plain = {"max_new_tokens": 6, "do_sample": False}
    if where == "call":
        return {**plain, **options}
    config = GenerationConfig(**{**plain, "pad_token_id": 0, "bos_token_id": 1, **options})
    if where == "config":
        return {"generation_config": config}
    model.generation_config = config
    return {}


@pytest.mark.parametrize("where", ["call", "config", "model"])
@pytest.mark.parametrize("named", sorted(MODES))
def test_a_mode_is_refused_by_name_before_any_forward(pair, named, where):
    if where != "call" and named in BY_CALL_ONLY:
        pytest.skip("no config can hold this option; its row with the option in the call runs beside this one")
    model, drafter, forwards = pair
    call = _written(model, MODES[named], where)
    with Unchanged(model, drafter, model.generation_config, call), pytest.raises(UnsupportedCallError, match=named):
        model.generate(IDS, assistant=drafter, **call)
    assert not forwards


@pytest.mark.filterwarnings("ignore::UserWarning:transformers")
@pytest.mark.parametrize("named", sorted(MODES))
def test_with_an_attached_default_a_mode_is_what_plain_makes_of_it(pair, named):
    model, drafter, forwards = pair
    call = _written(model, MODES[named], "call")
    expected = _outcome(lambda: type(model).generate(model, IDS, **call))
    plainly = len(forwards)
    with pytest.warns(UserWarning, match=f"without the attached drafter.*{named}") as caught:
        assert _outcome(lambda: model.generate(IDS, **call)) == expected
    assert [each.filename for each in caught if "attached drafter" in str(each.message)] == [__file__]
    assert drafter.calls == 0 and len(forwards) == 2 * plainly
    assert last_trace().loop == "plain" and last_trace().fallback
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*attached drafter")
        assert _outcome(lambda: model.generate(IDS, **call)) == expected, "said once"


def _outcome(run):
    """The text, or the kind and words of the error."""
    torch.manual_seed(0)
    try:
        return run().tolist()
    except Exception as error:
        return type(error).__name__, str(error)


def test_continuous_batching_of_an_attached_model_is_plains(pair):
    model, drafter, _ = pair
    config = GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=-1)
    expected = type(model).generate(model, IDS, max_new_tokens=6, do_sample=False)[0, 7:].tolist()
    prompts = [IDS[0].tolist(), IDS[0, :3].tolist()]
    batch = model.generate_batch(inputs=prompts, generation_config=config, continuous_batching_config=SMALL)
    made = [batch[name].generated_tokens for name in sorted(batch)]
    assert made[0] == expected and len(made[1]) == 6
    assert drafter.calls == 0
    assert torch.equal(model.generate(IDS, max_new_tokens=6, do_sample=False)[0, 7:], torch.tensor(expected))
    assert drafter.calls > 0, "and drafting works after it"


def test_an_attached_model_that_assists_another_is_asked_as_if_it_were_not_attached(pair):
    assistant, drafter, forwards = pair
    model, call = tiny_target(seed=5), {"max_new_tokens": 12, "do_sample": False}
    plain = model.generate(IDS, **call)
    dflash_hf.detach(assistant)
    assert torch.equal(model.generate(IDS, assistant_model=assistant, **call), plain)
    asked = len(forwards)
    dflash_hf.attach(assistant, drafter)
    for attached in (model, dflash_hf.attach(model)):
        assert torch.equal(attached.generate(IDS, assistant_model=assistant, **call), plain)
        assert drafter.calls == 0
    assert len(forwards) == 3 * asked


def test_beams_with_a_streamer_and_an_explicit_drafter_show_nothing(pair, capsys):
    model, drafter, _ = pair
    with pytest.raises(UnsupportedCallError, match="beam_search"):
        model.generate(IDS, num_beams=2, streamer=TextStreamer(None), assistant=drafter)
    assert not capsys.readouterr().out


def test_the_callable_without_attach_refuses_beams_before_any_forward(pair):
    model, drafter, forwards = pair
    dflash_hf.detach(model)
    for options in ({"num_beams": 2}, {"prompt_lookup_num_tokens": 3}, {"use_cache": False}):
        with pytest.raises(UnsupportedCallError, match=next(iter(options))):
            model.generate(IDS, custom_generate=dflash_hf.generate, assistant=drafter, max_new_tokens=4, **options)
    assert not forwards


def test_an_encoder_decoder_is_refused_by_name_before_any_forward(pair):
    _, drafter, _ = pair
    sizes = {"d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 96}
    model, forwards = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval(), []
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    with pytest.raises(UnsupportedTargetError, match="encoder-decoder"):
        dflash_hf.attach(model, drafter)
    expected = model.generate(IDS, max_new_tokens=4, do_sample=False)
    del forwards[:]
    dflash_hf.attach(model)
    with pytest.raises(UnsupportedTargetError, match="encoder-decoder"):
        model.generate(IDS, max_new_tokens=4, assistant=drafter)
    assert not forwards
    assert torch.equal(model.generate(IDS, max_new_tokens=4, do_sample=False), expected)
