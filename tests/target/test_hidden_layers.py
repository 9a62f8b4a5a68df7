"""Code of a checkpoint's own that hides its decoder layers or its memory: one sentence, before the prompt is read."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from torch import nn

import dflash_hf
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import DFlashWarning, UnsupportedTargetError
from dflash_hf.generation.attach import generate
from dflash_hf.target.pairing import check_pair
from dflash_hf.target.recurrent import mixers_of
from dflash_hf.target.trial import try_out
from dflash_hf.target.view import view_target
from tests.exact.unchanged import Unchanged
from tests.scripted import tiny_config
from tests.tiny import greedy, prompt, tiny_target


def refusal_of(target):
    with pytest.raises(UnsupportedTargetError) as caught:
        check_pair(target, DFlashDrafter(tiny_config(tiny_target())))
    said = str(caught.value)
    assert "\n" not in said and "or call generate without the drafter" in said
    return said


def test_layers_under_another_name_are_asked_for():
    target = tiny_target()
    target.model.stages = nn.Sequential(*target.model.layers)
    del target.model.layers
    said = refusal_of(target)
    assert "LlamaForCausalLM) has no list of decoder layers (an nn.ModuleList called layers, h, blocks" in said
    assert "no embedding" not in said and "no LM head" not in said


def test_a_model_that_knows_nothing_of_itself_is_asked_for_every_part():
    target = tiny_target()

    def unknown(self):
        raise NotImplementedError

    silent = dict.fromkeys(("get_decoder", "get_input_embeddings", "get_output_embeddings"), unknown)
    target.__class__ = type("Wrapped", (type(target),), silent)
    target.engine = target.model
    del target.model
    said = refusal_of(target)
    for needed in ("Wrapped", "get_decoder()", "get_input_embeddings()", "get_output_embeddings()"):
        assert needed in said


def test_a_config_without_a_width_is_told_so():
    target = tiny_target()
    target.config.__class__ = type("Bare", (type(target.config),), {"hidden_size": property(_unsaid)})
    assert "no width (hidden_size in its config)" in refusal_of(target)


def _unsaid(config):
    raise AttributeError


class Told:
    """A streamer that writes down what it is given."""

    def __init__(self):
        self.tokens = []

    def put(self, value):
        self.tokens.append(value)

    def end(self):
        self.tokens.append(None)


def hide(module):
    """Hooks hear of a module that is called, not of one whose forward is."""
    quiet = {"__call__": lambda self, *args, **kwargs: self.forward(*args, **kwargs)}
    module.__class__ = type("Quiet", (type(module),), quiet)


def lengths_read(target):
    """Tokens of each forward from now on, as they come to the embedding, which everybody calls."""
    lengths = []
    target.get_input_embeddings().register_forward_pre_hook(lambda _module, args: lengths.append(args[0].shape[1]))
    return lengths


HIDING = [
    ("model", "its forward does not call Quiet, the decoder found in it"),
    ("model.layers.2", "layer 2 did not run"),
]
CALL = {"max_new_tokens": 8, "do_sample": False}


@pytest.mark.parametrize(("part", "says"), HIDING)
def test_code_that_goes_around_its_own_modules_is_refused_before_the_prompt_is_read(part, says):
    target, told = dflash_hf.attach(tiny_target()), Told()
    drafter = DFlashDrafter(tiny_config(target)).eval()
    target.generate(prompt(), assistant=drafter, **CALL)  # found sound, and hidden since
    hide(target.get_submodule(part))
    lengths = lengths_read(target)
    for _ in range(2):
        with pytest.raises(UnsupportedTargetError, match=says):
            target.generate(prompt(), assistant=drafter, streamer=told, **CALL)
    with pytest.raises(UnsupportedTargetError, match=says):
        type(target).generate(target, prompt(), custom_generate=dflash_hf.generate, assistant=drafter, **CALL)
    assert lengths == [1] and not told.tokens, "one token was tried, once"
    other = DFlashDrafter(tiny_config(target, target_layer_ids=[1, 3])).eval()
    if part != "model":  # a drafter that reads other layers is not concerned
        assert torch.equal(target.generate(prompt(), assistant=other, **CALL), greedy(target, prompt(), 8))


@pytest.mark.parametrize(("part", "says"), HIDING)
def test_an_attached_default_leaves_hidden_layers_to_plain_decoding_and_says_so_once(part, says):
    target = tiny_target()
    plain, told, expected = greedy(target, prompt(), 8), Told(), Told()
    greedy(target, prompt(), 8, streamer=expected)
    dflash_hf.attach(target, DFlashDrafter(tiny_config(target)).eval())
    hide(target.get_submodule(part))
    with pytest.warns(DFlashWarning, match=f"running without the attached drafter: .*{says}"):
        assert torch.equal(target.generate(prompt(), streamer=told, **CALL), plain)
    assert says in dflash_hf.last_trace().fallback and dflash_hf.last_trace().loop == "plain"
    assert [None if each is None else each.tolist() for each in told.tokens] == [
        None if each is None else each.tolist() for each in expected.tokens
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(target.generate(prompt(), **CALL), plain)


def unnamed(mixer):
    """Custom code whose mixer fills the cache by a way that cannot be seen in it."""
    real = type(mixer)
    own = {name: way for name, way in inspect.getmembers(real, inspect.isfunction) if name not in dir(nn.Module)}
    own["forward"] = real.forward
    ways = {name: lambda self, *args, _way=way, **kwargs: _way(self, *args, **kwargs) for name, way in own.items()}
    mixer.__class__ = type("Unnamed", (nn.Module,), ways)


@pytest.mark.parametrize("which", ["one mixer", "all, in a model that calls itself stateless"])
def test_a_memory_that_turns_out_not_to_go_back_is_refused_before_the_prompt_is_read(which):
    target = tiny_target("qwen3_5")
    mixers = [mixer for _, mixer in mixers_of(view_target(target))]
    for mixer in mixers[:1] if which == "one mixer" else mixers:
        unnamed(mixer)
    if which != "one mixer":
        target.__class__ = type("Stateless", (type(target),), {"_is_stateful": False})
    plain, lengths = greedy(target, prompt(), 8), lengths_read(target)
    drafter = DFlashDrafter(tiny_config(target)).eval()
    with pytest.raises(UnsupportedTargetError, match="cannot (drop tokens|go back) after a verification"):
        generate(target, prompt(), assistant=drafter, **CALL)
    assert lengths == [1]
    dflash_hf.attach(target, drafter)
    with pytest.warns(DFlashWarning, match="running without the attached drafter: the target's cache"):
        assert torch.equal(target.generate(prompt(), **CALL), plain)


TRIED = ("llama", "phi3", "gemma4", "lfm2", "mamba2", "falcon_h1", "qwen2_5_vl", "qwen3_5_vlm")


@pytest.mark.parametrize("kind", TRIED)
def test_a_trial_leaves_nothing_behind_and_is_made_once(kind):
    target = tiny_target(kind).train()
    for module in target.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5  # draws
    view, config = view_target(target), tiny_config(target)
    lengths = lengths_read(target)
    with Unchanged(target):
        try_out(view, config)
        try_out(view, config)
    assert lengths == [1]


def test_a_target_that_takes_more_than_ids_is_left_to_its_own_call():
    target = tiny_target()
    drafter = DFlashDrafter(tiny_config(target)).eval()

    def ask(_module, _args):
        raise ValueError("which language?")

    asking = target.register_forward_pre_hook(ask)
    with pytest.raises(ValueError, match="which language"):
        generate(target, prompt(), assistant=drafter, **CALL)
    asking.remove()
    assert torch.equal(generate(target, prompt(), assistant=drafter, **CALL), greedy(target, prompt(), 8))


def test_a_trial_puts_back_what_a_model_notes_of_a_conversation():
    """As Qwen2-VL's code did with ``rope_deltas`` in each forward that begins a text; here the cache holds pictures."""
    target = tiny_target()
    target.model.rope_deltas = deltas = torch.tensor([[-5]])
    target.model.register_forward_pre_hook(lambda model, _args: setattr(model, "rope_deltas", torch.zeros(1, 1)))
    try_out(view_target(target), tiny_config(target))
    assert target.model.rope_deltas is deltas
