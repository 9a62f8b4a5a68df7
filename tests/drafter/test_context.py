"""The growing context gives what one injection of everything gives: over many rounds, past its buffers and windows."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter


def drafter(windows, causal, attention="sdpa"):
    torch.manual_seed(0)
    config = DFlashConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, target_layer_ids=[0], block_size=4, layer_windows=windows, layer_causal=causal,
    )  # fmt: skip
    config._attn_implementation = attention
    return DFlashDrafter(config).eval()


@settings(max_examples=15, deadline=None)
@given(
    rounds=st.lists(st.integers(1, 5), min_size=1, max_size=30),
    first=st.integers(1, 300),
    offset=st.integers(0, 9),
    windows=st.tuples(st.sampled_from([None, 5, 40]), st.sampled_from([None, 7])).map(list),
    causal=st.tuples(st.booleans(), st.booleans()).map(list),
)
@torch.no_grad()
def test_growing_context_equals_one_injection(rounds, first, offset, windows, causal):
    model, generator = drafter(windows, causal), torch.Generator().manual_seed(1)
    taps = torch.randn(1, first + sum(rounds), 16, generator=generator)
    block = torch.randn(1, 4, 16, generator=generator)
    context, held = model.new_context(), 0
    for count in (first, *rounds):
        places = torch.arange(offset + held, offset + held + count)[None]
        model.inject(taps[:, held : held + count], places, context)
        held += count
        # Every round drafts, so that stale block rows lie where the next injection goes.
        cached = model(block, position_ids=torch.arange(offset + held, offset + held + 4)[None], cache=context)
    places = torch.arange(offset, offset + held + 4)[None]
    at_once = model(block, taps, position_ids=places)
    torch.testing.assert_close(cached.last_hidden_state, at_once.last_hidden_state, atol=1e-5, rtol=1e-5)
    assert context.length == held


@pytest.mark.parametrize("windows", [[None, None], [6, None]])
@pytest.mark.parametrize("causal", [[True, False], [False, False]])
@torch.no_grad()
def test_eager_and_sdpa_agree(windows, causal):
    taps, block, places = torch.randn(1, 20, 16), torch.randn(1, 4, 16), torch.arange(24)[None]
    outputs = [drafter(windows, causal, name)(block, taps, position_ids=places) for name in ("eager", "sdpa")]
    torch.testing.assert_close(outputs[0].last_hidden_state, outputs[1].last_hidden_state, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_full_layer_keeps_all_and_a_windowed_one_what_a_block_can_see():
    model = drafter([None, 9], [False, False])
    context = model.new_context()
    model.inject(torch.randn(1, 300, 16), torch.arange(300)[None], context)
    assert [layer.visible for layer in context._layers] == [300, 8]


@torch.no_grad()
def test_a_windowed_layer_does_not_grow_with_the_text():
    model = drafter([9, 5], [False, False])
    context, block = model.new_context(), torch.randn(1, 4, 16)
    for start in range(0, 3000, 6):
        model.inject(torch.randn(1, 6, 16), torch.arange(start, start + 6)[None], context)
        model(block, position_ids=torch.arange(start + 6, start + 10)[None], cache=context)
    assert all(layer._keys.shape[2] <= 256 for layer in context._layers)


@settings(max_examples=25, deadline=None)
@given(
    held=st.integers(1, 320),
    dropped=st.integers(0, 330),
    again=st.integers(0, 20),
    windows=st.tuples(st.sampled_from([None, 5, 40]), st.sampled_from([None, 7])).map(list),
)
@torch.no_grad()
def test_a_cropped_context_is_one_that_never_had_those_rows(held, dropped, again, windows):
    """As far as windows let it: a layer that let old rows go does not get them back."""
    model, generator = drafter(windows, [False, False]), torch.Generator().manual_seed(1)
    taps, block = torch.randn(1, held + again, 16, generator=generator), torch.randn(1, 4, 16, generator=generator)
    cropped, fresh, left = model.new_context(), model.new_context(), max(held - dropped, 0)
    model.inject(taps[:, :held], torch.arange(held)[None], cropped)
    cropped.crop(dropped)
    if left:
        model.inject(taps[:, :left], torch.arange(left)[None], fresh)
    for context in (cropped, fresh):
        if again:
            model.inject(taps[:, held:], torch.arange(left, left + again)[None], context)
    places = torch.arange(left + again, left + again + 4)[None]
    assert cropped.length == fresh.length == left + again
    if [layer.visible for layer in cropped._layers] == [layer.visible for layer in fresh._layers]:
        mine, theirs = (model(block, position_ids=places, cache=each).last_hidden_state for each in (cropped, fresh))
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    else:
        assert any(window is not None for window in windows) and dropped


@torch.no_grad()
def test_an_interrupted_injection_is_settled():
    model = drafter([None, 6], [False, False])
    context, taps = model.new_context(), torch.randn(1, 30, 16)
    model.inject(taps[:, :20], torch.arange(20)[None], context)
    model.layers[1].self_attn.inject = None  # layer 0 takes its rows, layer 1 raises
    with pytest.raises(TypeError):
        model.inject(taps[:, 20:], torch.arange(20, 30)[None], context)
    context.settle()
    assert context.length == 20 and {layer.length for layer in context._layers} == {20}


@pytest.mark.parametrize("windows", [[9, 5], [9, None]])
@torch.no_grad()
def test_with_a_window_everywhere_nothing_grows_positions_included(windows):
    """However rows come: a long prompt at once, in chunks, and block by block."""
    model, sizes = drafter(windows, [False, False]), []
    context, held = model.new_context(), 0
    for count in (1000, *[300] * 5, *[5] * 200, *[300] * 5):
        model.inject(torch.randn(1, count, 16), torch.arange(held, held + count)[None], context)
        held += count
        model(torch.randn(1, 4, 16), position_ids=torch.arange(held, held + 4)[None], cache=context)
        sizes.append(context.bytes)
    assert context.window == (None if None in windows else 9)
    if None in windows:
        assert sizes[-1] > 2 * held * 2 * 8 * 4 / 2, "the layer that sees everything holds everything"
    else:
        assert max(sizes) <= 2 * 2 * 8 * 4 * 2 * (256 + 8) + 8 * 2 * (2 * (256 + 8) + 1000)
        assert context.length == held


@settings(max_examples=25, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(1, 300), st.sampled_from([None, 1, 4, 30])), min_size=1, max_size=4),
    dropped=st.integers(0, 40),
    own=st.tuples(st.sampled_from([None, 6]), st.sampled_from([None, 50])).map(list),
)
@torch.no_grad()
def test_a_limited_context_is_one_of_the_newest_rows_at_their_places(turns, dropped, own):
    """Whatever was limited before, and after rows were taken back: each layer shows its newest rows, no others."""
    model, generator, held = drafter(own, [False, False]), torch.Generator().manual_seed(1), 0
    context, block = model.new_context(), torch.randn(1, 4, 16, generator=generator)
    for count, window in turns:
        context.limit(window)
        context.crop(dropped)
        held = max(held - dropped, 0)
        model.inject(torch.randn(1, count, 16, generator=generator), torch.arange(held, held + count)[None], context)
        held += count
        model(block, position_ids=torch.arange(held, held + 4)[None], cache=context)
        for layer, own_window in enumerate(own):
            places = context.key_positions(layer, torch.arange(held, held + 4)[None])[0].tolist()
            most = min([held, *(each - 1 for each in (window, own_window) if each is not None)])
            assert places == list(range(places[0], held + 4)) and len(places) - 4 <= most
            assert len(places) - 4 >= min(most, count), "what was injected under this limit is there"
        assert context.length == held


@torch.no_grad()
def test_rows_that_are_taken_back_leave_as_many_positions_as_rows():
    """At every fill of the buffers: whichever of them has just let old rows go."""
    model = drafter([9, 5], [False, False])
    context, held, block = model.new_context(), 0, torch.arange(4)[None]
    for count in (400, *[5] * 90):  # more at once than a layer takes, so that its buffer is not as full as the other
        model.inject(torch.randn(1, count, 16), torch.arange(held, held + count)[None], context)
        held += count
        cropped = copy.deepcopy(context)
        cropped.crop(12)
        for layer, buffer in enumerate(cropped._layers):
            seen = cropped.key_positions(layer, block)[0, :-4].tolist()
            assert seen == list(range(held - 12 - buffer.visible, held - 12))
