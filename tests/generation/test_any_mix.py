"""Any mix of options gives the plain text: drawn at random, many at once. `make test-slow`."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from tests.scripted import scripted
from tests.tiny import CONFIGS, prompt, tiny_target

MIXES = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([1.2, 1.8]),
        "no_repeat_ngram_size": st.just(2),
        "suppress_tokens": st.just([4, 50]),
        "guidance_scale": st.just(1.4),
        "eos_token_id": st.lists(st.integers(2, 95), min_size=1, max_size=6, unique=True),
        "min_new_tokens": st.integers(1, 12),
        "prefill_chunk_size": st.integers(1, 5),
        "max_time": st.just(600.0),
        "top_k_one": st.just(True),
    },
)


@cache
def target(kind: str):
    return attach(tiny_target(kind))


def written(mix):
    options = dict(mix)
    if options.pop("top_k_one", False):
        return {**options, "do_sample": True, "top_k": 1}  # a draw with one outcome
    return {**options, "do_sample": False}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(sorted(CONFIGS)),
    mix=MIXES,
    length=st.integers(1, 12),
    padding=st.integers(0, 3),
    new=st.integers(1, 40),
    block=st.sampled_from([2, 5, 8, 16]),
    taps=st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
    cap=st.none() | st.integers(0, 9),
    wrong=st.sets(st.integers(0, 60)),
    cached=st.booleans(),
)
def test_any_mix_of_options_gives_the_plain_text(kind, mix, length, padding, new, block, taps, cap, wrong, cached):
    model, options = target(kind), {**written(mix), "max_new_tokens": new}
    ids = torch.cat([torch.zeros(1, padding, dtype=torch.long), prompt(length, seed=length)], dim=1)
    mask = torch.cat([torch.zeros(1, padding, dtype=torch.long), torch.ones(1, length, dtype=torch.long)], dim=1)
    if "guidance_scale" in options:
        ids, mask, cached, padding = ids[:, padding:], mask[:, padding:], False, 0

    def run(**extra):
        if cached:  # all of the prompt but its last token was read before
            extra[cache_key(model)] = _past(model, ids[:, :-1], mask[:, :-1])
        extra = {key: value for key, value in extra.items() if value is not None}
        outputs = {"return_dict_in_generate": True, "output_scores": True}
        return model.generate(ids, attention_mask=mask, **outputs, **options, **extra)

    try:
        plain = run()
    except RuntimeError:  # plain generate itself cannot: guidance, and on 5.18 padding in chunks, with M-RoPE
        reject()
    script = plain.sequences[0, padding:].tolist()
    drafter = scripted(model, script, lambda place: place in wrong, block_size=block, target_layer_ids=taps)
    ours = run(assistant=drafter, dflash={"max_draft_tokens": cap})
    assert torch.equal(ours.sequences, plain.sequences)
    assert len(ours.scores) == len(plain.scores)
    assert last_trace().tokens == plain.sequences[0, ids.shape[1] :].tolist()
    for name in ("cache", "past_key_values"):
        if plain.get(name) is not None:
            assert ours[name].get_seq_length() == plain[name].get_seq_length()


@torch.no_grad()
def _past(model, ids, mask):
    """A cache of all but the last token, or None where that is nothing but padding."""
    if not ids.shape[1] or not mask.any():
        return None
    return model(ids, attention_mask=mask, use_cache=True)[cache_key(model)]
