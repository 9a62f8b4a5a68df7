"""Code of a checkpoint's own that hides its decoder layers: one sentence that says what is needed, before any token."""

from __future__ import annotations

import pytest
from torch import nn

import dflash_hf
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.target.pairing import check_pair
from tests.scripted import tiny_config
from tests.tiny import prompt, tiny_target


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


@pytest.mark.parametrize(
    ("part", "says"),
    [("decoder", "its forward does not call Quiet, the decoder found in it"), ("layer", "layer 2 did not run")],
)
def test_code_that_goes_around_its_own_modules_is_refused_before_the_first_token(part, says):
    """Hooks hear of a module that is called, not of one whose forward is."""
    target, told = dflash_hf.attach(tiny_target()), Told()
    module = target.model if part == "decoder" else target.model.layers[2]
    quiet = {"__call__": lambda self, *args, **kwargs: self.forward(*args, **kwargs)}
    drafter = DFlashDrafter(tiny_config(target)).eval()
    call = {"max_new_tokens": 4, "do_sample": False}
    target.generate(prompt(), assistant=drafter, **call)
    module.__class__ = type("Quiet", (type(module),), quiet)
    with pytest.raises(UnsupportedTargetError, match=says):
        target.generate(prompt(), assistant=drafter, streamer=told, **call)
    assert len(told.tokens) == 1, "the prompt, as the host shows it, and no token"
