"""The growing context gives what one injection of everything gives: over many rounds, past its buffers and windows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.head import Draft, propose_parallel
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


def test_propose_parallel_leaves_the_anchors_slot_out():
    hidden = torch.eye(4)[None]  # slot k points at token k
    draft = propose_parallel(hidden, lambda states: states, 2)
    assert isinstance(draft, Draft)
    assert draft.tokens.tolist() == [[1, 2]] and draft.logits.shape == (1, 2, 4)
