"""``draft_window``: the drafter sees the newest tokens only, at their true places; the text is plain's in any case."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from transformers import DynamicCache

import dflash_hf
from dflash_hf.errors import OptionsError
from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from tests.exact.same import PATTERNS
from tests.scripted import scripted, tiny_config
from tests.tiny import greedy, prompt, tiny_target

NEW = 12


def network(model, **changes):
    """A random drafter whose proposals hang on what it sees: one of the usual spread says the same token always."""
    torch.manual_seed(2)
    drafter = dflash_hf.DFlashDrafter(tiny_config(model, **changes)).eval()
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.4)
    return drafter


def drafts():
    return [record.drafted for record in last_trace().rounds]


@torch.no_grad()
def drafts_of_last(model, drafter, text, start, shown):
    """What each round drafts that is shown the ``shown(layer)`` last tokens before its anchor, by one pass a round."""
    hidden = model(text, output_hidden_states=True).hidden_states
    taps = torch.cat([hidden[layer + 1] for layer in drafter.config.target_layer_ids], dim=-1)
    found, anchor = [], start
    for record in last_trace().rounds:
        rows = min(shown, anchor)
        ids = torch.cat([text[:, anchor : anchor + 1], torch.full((1, 7), drafter.config.mask_token_id)], dim=1)
        places = torch.arange(anchor - rows, anchor + 8)[None]
        embeds = model.get_input_embeddings()(ids)
        states = drafter(embeds, taps[:, anchor - rows : anchor], position_ids=places).last_hidden_state
        found.append(model.lm_head(states[0, 1 : 1 + len(record.drafted)]).argmax(dim=-1).tolist())
        anchor += record.committed
    return found


@pytest.mark.parametrize("window", [1, 2, 6, 20, 500])
@pytest.mark.parametrize("own", [None, 5])
def test_a_round_drafts_from_the_newest_tokens_alone(window, own):
    model, ids = attach(tiny_target()), prompt(300)
    drafter = network(model, layer_windows=[own, own])
    text = model.generate(ids, assistant=drafter, max_new_tokens=NEW, do_sample=False, dflash={"draft_window": window})
    assert torch.equal(text, greedy(model, ids, NEW))
    assert drafts() == drafts_of_last(model, drafter, text, 300, window - 1)


def test_the_smaller_window_of_a_layer_stays_and_windows_change_drafts():
    """Else the cases above would show nothing."""
    model, ids, seen = attach(tiny_target()), prompt(300), {}
    for own, window in ((None, None), (None, 9), (9, None), (9, 9), (9, 40)):
        drafter = network(model, layer_windows=[own, own], window_rule="context")
        model.generate(ids, assistant=drafter, max_new_tokens=NEW, do_sample=False, dflash={"draft_window": window})
        seen[own, window] = drafts()
    assert seen[9, None] == seen[9, 9] == seen[9, 40] != seen[None, None]
    assert seen[None, 9] != seen[None, None]


@pytest.mark.parametrize(
    "kind", ["llama", "mistral", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gemma3", "deepseek_v3"))]
)
def test_turns_with_other_windows_give_plains_text_in_every_order(kind):
    model = tiny_target(kind)
    drafter = scripted(model, prompt(60, seed=4), PATTERNS["spoiled"], layer_windows=[6, None])
    attach(model, drafter)
    for windows in itertools.permutations((None, 4, 11)):
        text, cache = prompt(), DynamicCache(config=model.config)
        for turn, window in enumerate(windows):
            text = torch.cat([text, prompt(5, seed=20 + turn)], dim=1)
            call = {"max_new_tokens": NEW, "do_sample": False}
            plain = type(model).generate(model, text, **call, **{cache_key(model): copy.deepcopy(cache)})
            drafter.scripts[0][:] = plain[0].tolist()
            text = model.generate(text, **call, dflash={"draft_window": window}, **{cache_key(model): cache})
            assert torch.equal(text, plain), f"{windows}, turn {turn}"


@pytest.mark.parametrize("windows", [(4, None), (None, 4), (4, 11), (11, 4), (1, None)])
def test_a_turn_sees_what_its_own_window_shows_and_earlier_turns_kept(windows):
    """These contexts are short, so nothing was let go: each turn drafts as if all turns had had its window."""
    model = attach(tiny_target())
    attach(model, network(model))
    call, cache, text = {"max_new_tokens": NEW, "do_sample": False}, DynamicCache(config=model.config), prompt()
    for window in windows:
        text = model.generate(text, **call, dflash={"draft_window": window}, **{cache_key(model): cache})
        over_turns, whole = drafts(), text[:, :-NEW]
        model.generate(whole, **call, dflash={"draft_window": window})
        assert drafts() == over_turns
        text = torch.cat([text, prompt(5, seed=21)], dim=1)


def test_a_call_leaves_the_drafter_as_it_was():
    model, ids = attach(tiny_target()), prompt(40)
    drafter = network(model)
    config = drafter.config.to_dict()
    options = {"assistant": drafter, "max_new_tokens": NEW, "do_sample": False}
    model.generate(ids, **options)
    before = drafts()
    with pytest.raises(KeyboardInterrupt):
        model.generate(ids, **options, dflash={"draft_window": 3, "on_round": _interrupt})
    model.generate(ids, **options)
    assert drafts() == before and drafter.config.to_dict() == config


def _interrupt(record):
    raise KeyboardInterrupt


@pytest.mark.parametrize("window", [0, -4, True, 2.0, "many"])
def test_a_window_that_is_none_is_refused(window):
    with pytest.raises(OptionsError, match="draft_window must be a whole number of at least 1 or None, got"):
        dflash_hf.DFlashOptions(draft_window=window)
