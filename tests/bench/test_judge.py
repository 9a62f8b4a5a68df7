from __future__ import annotations

import math

import pytest
import torch

from dflash_hf.bench import judge as module
from dflash_hf.bench.judge import dtype_step, first_difference, judge
from dflash_hf.errors import UnsupportedCallError
from dflash_hf.generation.attach import attach
from tests.scripted import scripted
from tests.tiny import greedy, prompt, tiny_target


def answer(model, ids, new: int) -> list[int]:
    return greedy(model, ids, new)[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("chunk", [256, 3, 7])
def test_judge_passes_plain_text_and_finds_a_planted_second_best(kind, chunk, monkeypatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    model, ids = tiny_target(kind), prompt()
    tokens = answer(model, ids, 20)
    verdict = judge(model, ids, tokens)
    assert verdict.ok and verdict.first_difference is None and len(verdict.gaps) == 20

    with torch.no_grad():
        logits = model(torch.cat([ids, torch.tensor([tokens[:11]])], dim=1)).logits[0, -1]
    best, second = logits.topk(2).indices.tolist()
    assert best == tokens[11]
    planted = judge(model, ids, [*tokens[:11], second])
    assert not planted.ok and planted.failures == [11] and planted.first_difference == 11
    assert planted.gaps[11] == pytest.approx(float(logits[best] - logits[second]), rel=1e-3)


@pytest.mark.parametrize(("steps", "fails"), [(0, False), (1, False), (12, True)])
def test_judge_draws_the_line_at_two_steps(steps, fails) -> None:
    model, ids = tiny_target("llama"), prompt()
    head = model.get_output_embeddings().weight
    (token,) = answer(model, ids, 1)
    twin = (token + 1) % len(head)
    with torch.no_grad():  # a power of two apart, so that the factor moves the logit by that many steps
        hidden = model.model(ids).last_hidden_state[0, -1]
        head[token] = 0
        head[token, 0] = 16 / float(hidden[0])
        head[twin] = head[token] * (1 - steps * torch.finfo(torch.float32).eps)
    verdict = judge(model, ids, [twin])
    if token < twin or steps:
        assert verdict.first_difference == 0
    assert verdict.ok is not fails
    assert verdict.near_tie_share == (0.0 if fails or verdict.first_difference is None else 1.0)


def test_judge_counts_steps_of_the_dtype_it_is_told() -> None:
    model, ids = tiny_target("llama"), prompt()
    tokens = answer(model, ids, 8)
    with torch.no_grad():
        logits = model(torch.cat([ids, torch.tensor([tokens[:3]])], dim=1)).logits[0, -1]
    best, second = logits.topk(2).values.tolist()
    runner_up = int(logits.topk(2).indices[1])
    for dtype in (torch.float32, torch.bfloat16):
        verdict = judge(model, ids, [*tokens[:3], runner_up], dtype=dtype)
        step = 2.0 ** math.floor(math.log2(abs(best))) * torch.finfo(dtype).eps
        assert verdict.steps[3] == pytest.approx((best - second) / step, rel=1e-3)
        assert verdict.dtype == str(dtype).removeprefix("torch.")


def test_judge_is_not_disturbed_by_an_attached_drafter() -> None:
    model, ids = tiny_target("llama"), prompt()
    tokens = answer(model, ids, 12)
    attach(model, scripted(model, torch.cat([ids, torch.tensor([tokens])], dim=1)))
    assert judge(model, ids, tokens).ok


def test_judge_replays_the_repetition_penalty_of_the_generation_config() -> None:
    model, ids = tiny_target("llama"), prompt()
    unpenalised = answer(model, ids, 40)
    model.generation_config.repetition_penalty = 3.0
    tokens = answer(model, ids, 40)
    assert tokens != unpenalised
    assert judge(model, ids, tokens).ok and not judge(model, ids, unpenalised).ok


def test_judge_refuses_what_it_cannot_replay() -> None:
    model = tiny_target("llama")
    model.generation_config.no_repeat_ngram_size = 3
    with pytest.raises(UnsupportedCallError, match="no_repeat_ngram_size"):
        judge(model, prompt(), [5])


def test_judge_fails_not_a_number() -> None:
    model, ids = tiny_target("llama"), prompt()
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(float("nan"))
    assert not judge(model, ids, [5]).ok


def test_judge_of_no_tokens_is_empty() -> None:
    verdict = judge(tiny_target("llama"), prompt(), [])
    assert verdict.ok and verdict.gaps == [] and verdict.near_tie_share == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtype_step_is_the_distance_to_the_next_number(dtype) -> None:
    values = torch.tensor([1.0, 1.5, 3.25, 20.0, 100.0]).to(dtype)
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    following = (values.view(bits) + 1).view(dtype)
    assert torch.equal(dtype_step(values, dtype), following.double() - values.double())


@pytest.mark.parametrize(
    ("left", "right", "place"), [([], [], None), ([1], [1], None), ([1, 2], [1], 1), ([1, 2], [1, 3], 1), ([], [4], 0)]
)
def test_first_difference_counts_a_missing_token_as_one(left, right, place) -> None:
    assert first_difference(left, right) == place
