"""Attaching changes one object and nothing else; every door leads to the same text."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from transformers import GenerationConfig, TextStreamer, pipeline

import dflash_hf
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import DFlashError, IncompatiblePairError, OptionsError
from dflash_hf.generation.record import last_trace
from dflash_hf.options import DFlashOptions
from tests.scripted import scripted, tiny_config
from tests.tiny import greedy, letters, prompt, tiny_target


@pytest.fixture
def model():
    return tiny_target()


@pytest.fixture
def text(model):
    return greedy(model, prompt(), 24)


@pytest.fixture(scope="module")
def tokenizer():
    return letters()


def test_a_bare_model_refuses_assistant_with_the_error_the_docs_quote(model, text):
    with pytest.raises(ValueError, match=r"`model_kwargs` are not used by the model: \['assistant'\]"):
        model.generate(prompt(), max_new_tokens=3, assistant=scripted(model, text))


@pytest.mark.parametrize(
    "door", ["assistant", "assistant_model", "default", "wrapper", "unattached", "speculation_type"]
)
def test_every_door_gives_plain_text_and_drafts(model, text, door):
    drafter, options = scripted(model, text, lambda place: place % 3 == 0), {"max_new_tokens": 24, "do_sample": False}
    if door in ("assistant", "assistant_model"):
        output = dflash_hf.attach(model).generate(prompt(), **{door: drafter}, **options)
    elif door == "default":
        output = dflash_hf.attach(model, drafter).generate(prompt(), **options)
    elif door == "wrapper":
        output = dflash_hf.DFlashModel(model, drafter).generate(prompt(), **options)
        assert "generate" not in model.__dict__
    elif door == "unattached":
        output = model.generate(prompt(), custom_generate=dflash_hf.generate, assistant=drafter, **options)
    else:
        attached = dflash_hf.attach(model)
        output = attached.generate(prompt(), assistant_model=drafter, speculation_type="dflash", **options)
    assert torch.equal(output, text)
    assert drafter.calls < 24


def test_detach_and_copies_leave_the_class_as_it_was(model, text):
    before = {name: id(value) for name, value in vars(type(model)).items()}
    state, config = set(model.state_dict()), model.config.to_dict()
    drafter = scripted(model, text)
    dflash_hf.attach(model, drafter)
    assert {name: id(value) for name, value in vars(type(model)).items()} == before
    assert set(model.state_dict()) == state
    assert model.config.to_dict() == config
    assert not any(module is drafter for module in model.modules())
    twin = copy.deepcopy(model)
    assert torch.equal(twin.generate(prompt(), max_new_tokens=24, do_sample=False), text)
    assert last_trace().rounds[0].accepted > 0
    assert twin.__dict__["generate"].__self__ is twin
    dflash_hf.detach(model)
    assert "generate" not in vars(model) and "_get_candidate_generator" not in vars(model)
    drafter.calls = 0
    assert torch.equal(model.generate(prompt(), max_new_tokens=24, do_sample=False), text)
    assert drafter.calls == 0
    dflash_hf.detach(model)


def test_a_pickled_model_comes_back_plain(model, text):
    again = pickle.loads(pickle.dumps(dflash_hf.attach(model, scripted(model, text))))
    assert torch.equal(again.generate(prompt(), max_new_tokens=24, do_sample=False), text)


def test_a_saved_model_knows_nothing_of_the_drafter(model, text, tmp_path):
    plain = tmp_path / "plain"
    model.save_pretrained(plain)
    dflash_hf.attach(model, scripted(model, text)).save_pretrained(tmp_path / "attached")
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        assert (plain / name).read_bytes() == (tmp_path / "attached" / name).read_bytes()


def test_calls_without_a_drafter_are_the_hosts_own(model, text):
    dflash_hf.attach(model)
    options = {"max_new_tokens": 24, "do_sample": False}
    assert torch.equal(model.generate(prompt(), **options), text)
    assert torch.equal(model.generate(prompt(), prompt_lookup_num_tokens=3, **options), text)
    assert torch.equal(model.generate(prompt(), assistant_model=tiny_target(), **options), text)
    batch = model.generate(prompt().expand(2, -1), **options)
    assert torch.equal(batch[0], text[0])


def test_pipeline_takes_the_drafter_as_assistant_model(model, text, tokenizer):
    drafter = scripted(model, text, lambda place: place % 3 == 0)
    dflash_hf.check_pair(model, drafter)
    words = tokenizer.decode(prompt()[0])
    plain = pipeline("text-generation", model=model, tokenizer=tokenizer)
    expected = plain(words, max_new_tokens=24, do_sample=False, return_full_text=False)
    dflash_hf.attach(model)
    ours = pipeline("text-generation", model=model, tokenizer=tokenizer, assistant_model=drafter)
    assert ours(words, max_new_tokens=24, do_sample=False, return_full_text=False) == expected
    assert drafter.calls > 0


def test_stop_strings_with_a_streamer_show_no_token_that_is_not_in_the_text(model, text, tokenizer, capsys):
    dflash_hf.attach(model)
    stop = [tokenizer.decode(text[0, 11:13])]
    for drafter in (None, scripted(model, text)):
        model.generate(
            prompt(), max_new_tokens=24, do_sample=False, tokenizer=tokenizer, stop_strings=stop, assistant=drafter,
            streamer=TextStreamer(tokenizer, skip_prompt=True),
        )  # fmt: skip
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_options_come_from_the_call_or_the_generation_config(model, text):
    dflash_hf.attach(model, scripted(model, text))
    for options in (
        {"dflash": DFlashOptions(max_draft_tokens=2)},
        {"dflash": {"max_draft_tokens": 2}},
        {"generation_config": GenerationConfig(max_new_tokens=24, dflash={"max_draft_tokens": 2})},
    ):
        model.generate(
            prompt(), **{"max_new_tokens": 24, "do_sample": False, **options} if "dflash" in options else options
        )
        assert max(len(record.drafted) for record in last_trace().rounds) == 2
    with pytest.raises(OptionsError, match="no option breadth"):
        model.generate(prompt(), max_new_tokens=3, dflash={"breadth": 2})
    with pytest.raises(OptionsError, match="max_draft_tokens"):
        DFlashOptions(max_draft_tokens=-1)


def test_the_trace_belongs_to_the_thread(model, text):
    dflash_hf.attach(model, scripted(model, text))
    model.generate(prompt(), max_new_tokens=5, do_sample=False)
    mine, theirs = last_trace(), []

    def run():
        theirs.append(last_trace())
        model.generate(prompt(), max_new_tokens=9, do_sample=False)
        theirs.append(last_trace())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert theirs[0] is None and len(theirs[1].tokens) == 9
    assert last_trace() is mine and len(mine.tokens) == 5


def test_a_pair_that_does_not_fit_is_refused_at_attach(model):
    drafter = DFlashDrafter(tiny_config(model, target_layer_ids=[0, 9], target_name="org/Big"))
    with pytest.raises(IncompatiblePairError, match=r"layer 9.*4 layers.*org/Big"):
        dflash_hf.attach(model, drafter)
    assert "generate" not in vars(model)
    with pytest.raises(DFlashError):
        dflash_hf.attach(model, "z-lab/some-drafter")
