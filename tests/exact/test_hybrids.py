"""Targets with recurrent layers: equal to plain decoding, wherever a block is rejected, and put back if interrupted."""

from __future__ import annotations

from functools import cache
from unittest.mock import patch

import pytest
import torch
from transformers import DynamicCache

from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from dflash_hf.target import replay
from dflash_hf.target.host import cache_key, chunks_go_on
from dflash_hf.target.pairing import check_pair
from dflash_hf.target.recurrent import continuation_error, mixers_of
from dflash_hf.target.trial import try_out
from dflash_hf.target.view import view_target
from tests.exact.same import PATTERNS, assert_equal_caches, assert_equal_outputs, assert_same, drafter_for
from tests.hybrids import DISCONTINUOUS, HYBRIDS
from tests.scripted import scripted
from tests.tiny import build_target, prompt, tiny_target

NEW, START = 30, prompt().shape[1]
SOON = ("falcon_h1", "qwen3_5")  # a layer of each kind; the others take two minutes more
KINDS = [pytest.param(kind, marks=() if kind in SOON else pytest.mark.slow) for kind in sorted(HYBRIDS)]
COUNTED = [row for row in KINDS if row.values != ("mamba2",)]  # the host cannot count the tokens of the other's cache
BLOCK = 8


@cache
def target(kind):
    model = tiny_target(kind)
    if kind == "olmo_hybrid" and not chunks_go_on():
        with pytest.raises(UnsupportedTargetError, match="several tokens at once"):
            check_pair(model, drafter_for(model, prompt(), "random"))
        pytest.skip("this release continues it wrongly, and it is refused; runs on 5.24 (make test-slow)")
    return model


def options(**more):
    return {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_scores": True, **more}


@cache
def plain(kind):
    model = target(kind)
    return type(model).generate(model, prompt(), **options())


@pytest.mark.parametrize("pattern", ["all", "none", "spoiled"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_hybrid_equals_plain(kind, pattern):
    model = target(kind)
    drafted = generate(model, prompt(), assistant=drafter_for(model, plain(kind).sequences, pattern), **options())
    assert_equal_outputs(drafted, plain(kind))
    trace = last_trace()
    assert trace.state == "replay" and trace.spare_bytes > 0
    assert len(set(drafted.sequences[0, START:].tolist())) >= 6, "a target that repeats itself hides what is broken"


@pytest.mark.parametrize("kind", KINDS)
def test_a_rejection_at_every_place_of_the_block(kind):
    model, text = target(kind), plain(kind).sequences
    for place in range(1, BLOCK):
        drafter = scripted(model, text, lambda token, place=place: (token - START) % BLOCK == place)
        drafted = generate(model, prompt(), assistant=drafter, **options())
        assert_equal_outputs(drafted, plain(kind))
        accepted = {record.accepted for record in last_trace().rounds}
        assert place - 1 in accepted, "the first block ends where it was spoiled"


@pytest.mark.parametrize("kind", COUNTED)
def test_a_padded_prompt_in_chunks_equals_plain(kind):
    if kind == "qwen3_5_vlm" and not chunks_go_on():
        pytest.skip("this release reads no chunks of it, plain or drafted; runs on 5.24 (make test)")
    ids = torch.cat([torch.zeros(1, 3, dtype=torch.long), prompt(13)], dim=1)
    mask = (ids != 0).long()
    assert_same(target(kind), ids, lambda: options(attention_mask=mask, prefill_chunk_size=5), padding=3)


def test_several_rows_of_a_layer_with_both_kinds_of_memory():
    ids = torch.cat([prompt(seed=5), prompt(seed=6)])
    assert_same(target("falcon_h1"), ids, options)
    assert [row.spare_bytes > 0 for row in last_trace().rows] == [True, True], "also where caches leave the call"


def test_a_conversation_over_a_purely_recurrent_cache():
    """Nobody counts its tokens; the drafter starts anew each turn, the text is plain's."""
    model = target("mamba2")
    key, texts = cache_key(model), []
    for kind in (None, "spoiled"):
        held, ids = DynamicCache(config=model.config), prompt()
        for said in (torch.tensor([[11, 12, 13]]), torch.tensor([[21]])):
            call = options(max_new_tokens=8, **{key: held})
            if kind is None:
                output = model.generate(ids, **call)
            else:
                output = generate(model, ids, assistant=scripted(model, texts[0], PATTERNS[kind]), **call)
            ids = torch.cat([output.sequences, said], dim=1)
        texts.append(output.sequences)
    assert torch.equal(*texts)


@pytest.mark.parametrize("kind", ["falcon_h1", "qwen3_5"])
def test_mixers_run_again_only_after_a_rejection(kind):
    model, text, ran = target(kind), plain(kind).sequences, []
    real = replay.ReplayState._replay
    with patch.object(replay.ReplayState, "_replay", lambda state, rows: (ran.append(rows), real(state, rows))):
        generate(model, prompt(), assistant=drafter_for(model, text, "all"), max_new_tokens=24, do_sample=False)
        assert not ran and not any(record.replay_ms for record in last_trace().rounds)
        generate(model, prompt(), assistant=drafter_for(model, text, "spoiled"), max_new_tokens=24, do_sample=False)
    rejected = [record for record in last_trace().rounds if record.accepted < len(record.drafted)]
    assert ran == [record.committed for record in rejected]
    assert all(record.replay_ms > 0 for record in rejected)


class Broken(Exception):
    pass


def breaking(mixer, at):
    """Its forward, which fails half-way at call ``at``: the state is written by then."""
    real, calls = mixer.forward, []

    def forward(*args, **kwargs):
        output = real(*args, **kwargs)
        calls.append(1)
        if len(calls) == at:
            raise Broken
        return output

    return patch.object(mixer, "forward", forward)


@pytest.mark.parametrize("at", range(1, 6), ids=["prefill", "verify", "replay", "second verify", "second replay"])
@pytest.mark.parametrize("kind", ["falcon_h1", "qwen3_5"])
def test_an_interrupted_round_leaves_the_users_cache_as_plain_had_it(kind, at):
    """Broken in the middle of the stack, the cache holds the tokens committed before, in the tensors it came with."""
    model, text = target(kind), plain(kind).sequences
    key, held = cache_key(model), DynamicCache(config=model.config)
    with torch.no_grad():
        model(text[:, : START - 2], use_cache=True, **{key: held})
    own = [state for layer in held.layers for state in getattr(layer, "recurrent_states", {}).values()]
    drafter = scripted(model, text, lambda place: place % 3 == 2)
    try_out(view_target(model), drafter.config)
    with breaking(mixers_of(view_target(model))[1][1], at), pytest.raises(Broken):
        generate(model, prompt(), assistant=drafter, **options(**{key: held}))
    now = [state for layer in held.layers for state in getattr(layer, "recurrent_states", {}).values()]
    assert all(mine is theirs for mine, theirs in zip(now, own, strict=True))
    read = held.get_seq_length()
    assert read == START - 2 if at == 1 else read >= START
    afresh = DynamicCache(config=model.config)
    with torch.no_grad():
        model(text[:, :read], use_cache=True, **{key: afresh})
    assert_equal_caches(held, afresh)
    assert not any(mixer._forward_pre_hooks for _, mixer in mixers_of(view_target(model)))


@pytest.mark.parametrize("kind", sorted(DISCONTINUOUS))
def test_why_some_are_refused(kind):
    """A release that mends this makes them draft: then this test fails, and they move to ``HYBRIDS``."""
    model, ids = build_target(DISCONTINUOUS[kind]), prompt(7)
    view = view_target(model)
    assert continuation_error(view, mixers_of(view)[0]) > 0.1
    states = []
    for steps in ([3], [1, 1, 1]):
        held, at = DynamicCache(config=model.config), 0
        with torch.no_grad():
            for count in (4, *steps):
                model(ids[:, at : at + count], use_cache=True, **{cache_key(model): held})
                at += count
        states.append(held.layers[0].recurrent_states[0])
    assert (states[0] - states[1]).norm() / states[1].norm() > 0.1


@pytest.mark.parametrize("kind", ["falcon_h1", "mamba2", "qwen3_5"])
def test_what_drafts_continues_to_the_last_digits(kind):
    view = view_target(target(kind))
    assert continuation_error(view, mixers_of(view)[0]) < 1e-5
