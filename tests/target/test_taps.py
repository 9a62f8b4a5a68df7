"""Taps equal the host's hidden states bit for bit, and are deaf to forwards nobody announced."""

from __future__ import annotations

import inspect
import threading

import pytest
import torch

from dflash_hf.target.taps import TapRecorder
from dflash_hf.target.view import view_target
from tests.families import FAMILIES
from tests.tiny import prompt, tiny_target


@pytest.mark.parametrize("kind", sorted(FAMILIES))
@torch.no_grad()
def test_taps_equal_hidden_states(kind):
    model = tiny_target(kind)
    caught = []
    with (
        TapRecorder(view_target(model), [0, 2, 3]) as recorder,
        recorder.listen(lambda taps, at: caught.append((taps, at))),
    ):
        hidden = model(prompt(), output_hidden_states=True).hidden_states
    expected = torch.cat([hidden[1], hidden[3], hidden[4]], dim=-1)
    assert torch.equal(caught[0][0], expected)
    if "logits_to_keep" in inspect.signature(model.forward).parameters:  # as the host's prefill asks for one row
        with TapRecorder(view_target(model), [0, 2, 3]) as recorder, recorder.listen(lambda *taps: caught.append(taps)):
            assert model(prompt(), logits_to_keep=1).logits.shape[1] == 1
        assert torch.equal(caught[1][0], expected)
    assert caught[0][1] is None or caught[0][1].reshape(-1)[-7:].tolist() == list(range(7))


@pytest.mark.parametrize("kind", sorted(FAMILIES))
@torch.no_grad()
def test_final_norm_stands_between_the_last_layer_and_the_head(kind):
    model, raw = tiny_target(kind), []
    view = view_target(model)
    view.layers[-1].register_forward_hook(
        lambda _module, _args, out: raw.append(out if torch.is_tensor(out) else out[0])
    )
    last = model(prompt(), output_hidden_states=True).hidden_states[-1]
    assert torch.equal(view.final_norm(raw[0]), last)


@torch.no_grad()
def test_only_announced_forwards_of_the_owning_thread_are_heard():
    model, caught = tiny_target(), []
    with TapRecorder(view_target(model), [1]) as recorder:
        model(prompt())
        with recorder.listen(lambda taps, _: caught.append(taps.shape[1])):
            thread = threading.Thread(target=lambda: model(prompt(3)))
            thread.start()
            thread.join()
            model(prompt(5))
        model(prompt(4))
    assert caught == [5]
    assert not any(layer._forward_hooks for layer in model.model.layers)


def test_hooks_are_gone_after_an_exception():
    model = tiny_target()
    with pytest.raises(RuntimeError), TapRecorder(view_target(model), [0, 3]):
        raise RuntimeError
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@torch.no_grad()
def test_a_forward_is_handed_on_whole_unless_parts_are_asked_for():
    """Regeneration and verification take a forward as one; the injection of a long prompt asks for parts."""
    model, ids, caught = tiny_target(), prompt(1500), []
    with TapRecorder(view_target(model), [0, 3]) as recorder:
        for at_once in (None, 400):
            with recorder.listen(lambda taps, _: caught.append(taps), at_once):
                model(ids)
    whole, *parts = caught
    assert [taps.shape[1] for taps in caught] == [1500, 400, 400, 400, 300]
    assert torch.equal(torch.cat(parts, dim=1), whole)
