"""Targets whose positions end, or change their meaning: drafted text equals plain up to there, across and beyond."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList

from dflash_hf.errors import DFlashWarning
from dflash_hf.generation.attach import attach, generate
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from dflash_hf.target.view import view_target
from tests.exact.same import assert_equal_outputs, assert_same, drafter_for
from tests.families import FAMILIES, IDS, MOE, SIZES, UNTIED, WINDOW, Family
from tests.tiny import build_target, greedy, prompt, tiny_target

END = 24
WITHOUT_HEAD = {key: value for key, value in SIZES.items() if key != "head_dim"} | {"max_position_embeddings": END}
GPT = {"vocab_size": 96, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": END, **IDS}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
    "original_max_position_embeddings": END,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
SWITCHED = {"original_max_position_embeddings": END}

TABLES = {
    "opt": Family("OPTConfig", WITHOUT_HEAD | {"word_embed_proj_dim": 32, "ffn_dim": 48}),
    "gpt_neo": Family(
        "GPTNeoConfig",
        WITHOUT_HEAD
        | {"num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]], "window_size": 8},
    ),
    "gpt_bigcode": Family("GPTBigCodeConfig", GPT | UNTIED),
    "gptj": Family("GPTJConfig", GPT | {"rotary_dim": 4}),
    "codegen": Family("CodeGenConfig", GPT | {"rotary_dim": 4, "n_ctx": END}),
    "ctrl": Family("CTRLConfig", GPT | UNTIED | {"dff": 48}),
    "mpt": Family(
        "MptConfig",
        {"vocab_size": 96, "d_model": 32, "n_layers": 4, "n_heads": 4, "max_seq_len": END, "use_cache": True, **IDS},
    ),
    "biogpt": Family("BioGptConfig", SIZES | {"max_position_embeddings": END}),
}
ENDLESS = {
    "bloom": FAMILIES["bloom"],
    "falcon": Family("FalconConfig", WITHOUT_HEAD | {"multi_query": True}),
    "falcon_alibi": Family("FalconConfig", WITHOUT_HEAD | {"alibi": True}),
    "gemma4": FAMILIES["gemma4"],  # its embeddings for each layer are no table of positions
    "gemma3": FAMILIES["gemma3"],  # frequencies of its own for each kind of layer
}
CHANGING = {
    "phi3": Family("Phi3Config", SIZES | SWITCHED | {"rope_parameters": LONG}),
    "phi3_window": Family("Phi3Config", SIZES | SWITCHED | WINDOW | {"rope_parameters": LONG}),
    "phi3_one_rope": Family("Phi3Config", SIZES | SWITCHED),  # drops its cache all the same
    "phimoe": Family(
        "PhimoeConfig", SIZES | MOE | {"rope_parameters": LONG | {"short_mscale": 1.0, "long_mscale": 1.1}}
    ),
    "llama_longrope": Family("LlamaConfig", SIZES | {"rope_parameters": LONG}),
    "llama_dynamic": Family("LlamaConfig", SIZES | {"max_position_embeddings": END, "rope_parameters": DYNAMIC}),
}


def call(new: int, **options: object) -> dict[str, object]:
    return {"max_new_tokens": new, "do_sample": False, "return_dict_in_generate": True, "output_scores": True} | options


class _LongEnough(StoppingCriteria):
    """Ends the text where the table ends, which nobody can know beforehand."""

    def __call__(self, input_ids, scores, **_):
        return torch.full((len(input_ids),), input_ids.shape[1] > END, dtype=torch.bool)


@pytest.mark.parametrize("kind", sorted(TABLES))
def test_a_block_never_reaches_past_the_last_position(kind):
    model = build_target(TABLES[kind])
    assert_same(model, prompt(), lambda: call(60, stopping_criteria=StoppingCriteriaList([_LongEnough()])), "all")
    assert last_trace().metrics()["num_accepted_draft_tokens"] >= 14


@pytest.mark.parametrize("kind", sorted(ENDLESS))
def test_drafting_goes_on_past_the_positions_it_was_trained_with(kind):
    model = build_target(ENDLESS[kind])
    if hasattr(model.config, "max_position_embeddings"):
        model.config.max_position_embeddings = END
    assert_same(model, prompt(), lambda: call(40), "all")
    assert last_trace().metrics()["num_plain_steps"] == 0


@pytest.mark.parametrize("kind", sorted(CHANGING))
@pytest.mark.parametrize("pattern", ["all", "spoiled"])
def test_text_across_a_change_of_frequencies_equals_plain(kind, pattern):
    model = build_target(CHANGING[kind])
    for length, new in ((7, 40), (END - 1, 20), (END, 20), (END + 1, 20)):
        if kind == "llama_dynamic" and length >= END:
            continue  # its frequencies then are those of the longest call before: plain text is not repeatable either
        _, plain = assert_same(model, prompt(length), lambda new=new: call(new), pattern)
        accepted = last_trace().metrics()["num_accepted_draft_tokens"]
        assert accepted or length >= END - 1, "it drafts up to there"
        whole = plain[cache_key(model)].get_seq_length() == length + new - 1  # transformers 5.18 loses Phi-3's cache
        assert accepted or kind == "llama_dynamic" or not whole, "and beyond"


@pytest.mark.parametrize("kind", sorted(CHANGING))
def test_a_left_padded_row_across_a_change_of_frequencies_equals_plain(kind):
    ids = torch.cat([torch.zeros(1, 3, dtype=torch.long), prompt()], dim=1)
    mask = torch.cat([torch.zeros(1, 3, dtype=torch.long), torch.ones_like(prompt())], dim=1)
    model = build_target(CHANGING[kind])
    assert_same(model, ids, lambda: call(40, attention_mask=mask), "spoiled", padding=3)


@pytest.mark.parametrize("kind", sorted(CHANGING.keys() - {"llama_dynamic"}))  # plain turns depend on earlier calls
def test_a_users_cache_across_a_change_of_frequencies_equals_plain(kind):
    """The second turn's prompt begins before the change and ends after it, padding in front."""
    model = attach(build_target(CHANGING[kind]))
    answers = {}
    for way in ("plain", "drafted"):
        cache, (ids, mask) = DynamicCache(config=model.config), (prompt(), torch.ones_like(prompt()))
        ids, mask = (torch.cat([torch.zeros(1, 2, dtype=torch.long), part], dim=1) for part in (ids, mask))
        turns = []
        for turn in range(3):
            options = call(9, attention_mask=mask, **{cache_key(model): cache})
            if way == "drafted":
                script = answers["plain"][turn].sequences[:, 2:]
                turns.append(generate(model, ids, assistant=drafter_for(model, script, "spoiled"), **options))
            else:
                turns.append(type(model).generate(model, ids, **options))
            cache = turns[-1][cache_key(model)]
            ids = torch.cat([turns[-1].sequences, torch.tensor([[11 + turn, 12, 13]])], dim=1)
            mask = torch.cat([mask, torch.ones(1, ids.shape[1] - mask.shape[1], dtype=torch.long)], dim=1)
        answers[way] = turns
    for drafted, plain in zip(answers["drafted"][-1:], answers["plain"][-1:], strict=True):
        assert_equal_outputs(drafted, plain)
    assert all(torch.equal(a.sequences, b.sequences) for a, b in zip(*answers.values(), strict=True))


@pytest.mark.parametrize("kind", ["gptj", "llama_longrope", "llama_dynamic"])
def test_the_hosts_own_loop_keeps_to_the_same_ends(kind):
    model = attach(build_target((TABLES | CHANGING)[kind]))
    new = END - 7 if kind in TABLES else 40
    text = greedy(model, prompt(), new)
    output = model.generate(
        prompt(), max_new_tokens=new, do_sample=False, speculation_type="dflash",
        assistant_model=drafter_for(model, text, "all"),
    )  # fmt: skip
    assert torch.equal(output, text)


def test_room_counts_from_the_anchor():
    assert view_target(tiny_target("gpt2")).room(120, 121, 120) == 7, "positions 121 to 127 are left"
    assert view_target(tiny_target("gpt2")).room(127, 128, 127) == 0
    assert view_target(tiny_target("llama")).room(10**6, 10**6 + 1, 10**6) is None
    switched = view_target(build_target(CHANGING["phi3"]))
    assert [switched.room(place, place + 1, place) for place in (20, 23, 24, 25)] == [3, 0, 0, None]
    assert switched.room(10, 21, 20) == 3, "with padding, the length nears the change before the position does"
    assert switched.room(40, 41, 1) == 0, "a cache that was dropped and not filled again (transformers 5.18)"


@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa"])
def test_sparse_attention_says_from_where_ties_count(kind, recwarn):
    model = tiny_target(kind)
    limit = model.config.index_topk
    drafter = drafter_for(model, prompt(), "random")
    generate(model, prompt(), assistant=drafter, max_length=limit - 100, do_sample=False)
    assert not recwarn.list, "exact up to there"
    with pytest.warns(DFlashWarning, match=f"past {limit} of this call's {limit + 1} tokens"):
        generate(model, prompt(limit - 2), assistant=drafter, max_length=limit + 1, do_sample=False)
