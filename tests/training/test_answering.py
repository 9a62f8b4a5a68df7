"""Batched answers are the ones each prompt gets alone: from plain generate, from its own seed, with the host's taps."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

from dflash_hf.errors import OptionsError, UnsupportedTargetError
from dflash_hf.target.taps import TapRecorder
from dflash_hf.target.view import view_target
from dflash_hf.training.answers.answering import answer_batch
from dflash_hf.training.answers.cache import answer_cache, pads
from tests.families import CONV, SIZES, Family
from tests.tiny import CONFIGS, build_target, greedy, tiny_target

NEW, ENDS = 20, [7, 13, 20, 41]
HYBRID = Family(
    "Qwen3NextConfig",
    SIZES
    | {"layer_types": ["linear_attention", "full_attention"] * 2, "num_experts": 0, "mlp_only_layers": [0, 1, 2, 3]}
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
)


def some_prompts(common: int = 3) -> list[list[int]]:
    """Of several lengths, two of them the same; they begin alike."""
    generator = torch.Generator().manual_seed(1)
    own = [torch.randint(2, 90, (length,), generator=generator).tolist() for length in (1, 4, 4, 9, 15, 30)]
    return [[5, 6, 7][:common] + ids for ids in own]


def plain(model, prompt: list[int], ends: list[int], new: int = NEW) -> list[int]:
    return greedy(model, torch.tensor([prompt]), new, eos_token_id=ends or None)[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", [*CONFIGS, "bloom", "gemma4_shared", "llama4", "qwen2"])
def test_greedy_answers_are_those_of_plain_generate(kind):
    target = tiny_target(kind)
    prompts = some_prompts()
    replies = answer_batch(view_target(target), prompts, eos_ids=ENDS, max_new_tokens=NEW)
    assert [reply.ids for reply in replies] == [plain(target, prompt, ENDS) for prompt in prompts]
    assert [reply.ended for reply in replies] == [reply.ids[-1] in ENDS for reply in replies]


def test_a_target_with_recurrent_layers_answers_without_padding():
    target = build_target(HYBRID)
    assert not pads(answer_cache(target))
    prompts = some_prompts()
    replies = answer_batch(view_target(target), prompts, eos_ids=ENDS, max_new_tokens=NEW)
    assert [reply.ids for reply in replies] == [plain(target, prompt, ENDS) for prompt in prompts]


def test_rotary_frequencies_that_follow_the_longest_row_are_not_shared():
    dynamic = {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}
    target = build_target(Family("LlamaConfig", SIZES | dynamic | {"max_position_embeddings": 16}))
    prompts = some_prompts()
    replies = answer_batch(view_target(target), prompts, eos_ids=[], max_new_tokens=NEW)
    assert [reply.ids for reply in replies] == [plain(target, prompt, []) for prompt in prompts]


def test_many_rows_that_end_at_different_times_stay_what_they_are():
    """More rows than one ended row is worth dropping for."""
    target = tiny_target("qwen3")
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(2, 90, (3 + row % 5,), generator=generator).tolist() for row in range(40)]
    replies = answer_batch(view_target(target), prompts, eos_ids=ENDS, max_new_tokens=16)
    assert [reply.ids for reply in replies] == [plain(target, prompt, ENDS, 16) for prompt in prompts]
    assert len({len(reply.ids) for reply in replies}) > 5


def test_what_is_drawn_depends_on_the_seed_and_the_prompt_alone():
    view, prompts = view_target(tiny_target("llama")), some_prompts()
    drawing = {"eos_ids": ENDS, "max_new_tokens": NEW, "temperature": 1.3, "top_p": 0.9}
    together = answer_batch(view, prompts, seeds=[11, 12, 13, 14, 15, 16], **drawing)
    for row, prompt in enumerate(prompts):
        assert answer_batch(view, [prompt], seeds=[11 + row], **drawing) == [together[row]]
    backwards = answer_batch(view, prompts[::-1], seeds=[16, 15, 14, 13, 12, 11], **drawing)
    assert backwards[::-1] == together
    others = answer_batch(view, prompts, seeds=[21, 22, 23, 24, 25, 26], **drawing)
    assert sum(one != other for one, other in zip(together, others, strict=True)) >= 5


def test_temperatures_may_differ_by_row():
    target, prompts = tiny_target("llama"), some_prompts()
    view, seeds = view_target(target), [1, 2, 3, 4, 5, 6]
    mixed = answer_batch(
        view, prompts, eos_ids=ENDS, max_new_tokens=NEW, temperature=[0, 1.0, 0, 2.0, 1.0, 0], seeds=seeds
    )
    for row, temperature in enumerate([0, 1.0, 0, 2.0, 1.0, 0]):
        alone = answer_batch(
            view, [prompts[row]], eos_ids=ENDS, max_new_tokens=NEW, temperature=temperature, seeds=seeds[row : row + 1]
        )
        assert mixed[row] == alone[0]
    assert mixed[0].ids == plain(target, prompts[0], ENDS)


def test_drawn_tokens_have_the_hosts_probabilities():
    target, prompt, draws = tiny_target("llama"), some_prompts()[1], 3000
    replies = answer_batch(
        view_target(target), [prompt] * draws, eos_ids=[], max_new_tokens=1, temperature=3.0, top_p=0.8,
        seeds=list(range(draws)),
    )  # fmt: skip
    warpers = LogitsProcessorList([TemperatureLogitsWarper(3.0), TopPLogitsWarper(0.8)])
    with torch.no_grad():
        expected = warpers(None, target(torch.tensor([prompt])).logits[:, -1]).softmax(dim=-1)[0]
    found = torch.bincount(torch.tensor([reply.ids[0] for reply in replies]), minlength=len(expected)) / draws
    assert 5 < int((expected > 0).sum()) < len(expected)
    assert not found[expected == 0].any()
    assert ((found - expected).abs() <= 5 * (expected * (1 - expected) / draws).sqrt()).all()


@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_taps_are_the_hosts_hidden_states_of_all_but_the_last_token(kind):
    target, prompts, layers = tiny_target(kind), some_prompts(), [2, 0, 3]
    view, pieces = view_target(target), {}
    ends = plain(target, prompts[0], [])[5:7]
    replies = answer_batch(
        view, prompts, eos_ids=ends, max_new_tokens=NEW, recorder=TapRecorder(view, layers),
        on_taps=lambda row, taps: pieces.setdefault(row, []).append(taps),
    )  # fmt: skip
    assert replies[0].ended and len(replies[0].ids) <= 6 < len(max(replies, key=lambda reply: len(reply.ids)).ids)
    for row, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        taps = torch.cat(pieces[row])
        text = torch.tensor([prompt + reply.ids])
        with torch.no_grad():
            hidden = target(text[:, :-1], output_hidden_states=True).hidden_states
        expected = torch.cat([hidden[layer + 1] for layer in layers], dim=-1)[0]
        assert taps.dtype == torch.bfloat16 and len(taps) == text.shape[1] - 1
        torch.testing.assert_close(taps.float(), expected, atol=0.05, rtol=0.02)


def test_short_convolutions_and_windows_take_one_prompt_as_many():
    for kind in ("lfm2", "mistral"):
        target = tiny_target(kind)
        prompt = some_prompts()[4]
        replies = answer_batch(view_target(target), [prompt] * 3, eos_ids=ENDS, max_new_tokens=NEW)
        assert [reply.ids for reply in replies] == [plain(target, prompt, ENDS)] * 3
    assert "conv" in CONV["layer_types"]


def test_a_target_without_a_growing_cache_is_refused(monkeypatch):
    target = tiny_target("llama")
    monkeypatch.setattr(target, "_supports_default_dynamic_cache", lambda: False)
    with pytest.raises(UnsupportedTargetError, match="keeps no cache that grows"):
        answer_batch(view_target(target), [[5]], eos_ids=[], max_new_tokens=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "negative"),
        ({"temperature": 1.0}, "seeds"),
        ({"temperature": 1.0, "seeds": [1], "top_p": 0.0}, "top_p"),
    ],
)
def test_decoding_that_cannot_be_is_refused(options, message):
    with pytest.raises(OptionsError, match=message):
        answer_batch(view_target(tiny_target("llama")), [[5]], eos_ids=[], max_new_tokens=1, **options)
