"""Every family of targets, past its window: tokens, scores and the whole cache equal plain decoding.

Every family runs a few rows in `make test`; both attentions against every drafter are `make test-slow`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from tests.exact.same import PATTERNS, assert_equal_outputs, drafter_for
from tests.families import FAMILIES
from tests.tiny import prompt, tiny_target

KINDS, DEFAULT = sorted(FAMILIES), "default"
NEW, PADDING = 40, 3


def _padded(ids: Tensor) -> tuple[Tensor, Tensor]:
    zeros = torch.zeros(1, PADDING, dtype=torch.long)
    return torch.cat([zeros, ids], dim=1), torch.cat([zeros, torch.ones_like(ids)], dim=1)


# name: prompt and its mask, padding on the left, new tokens
PROMPTS: dict[str, Callable[[], tuple[Tensor, Tensor | None, int, int]]] = {
    "prompt": lambda: (prompt(), None, 0, NEW),
    "one_token": lambda: (prompt(1), None, 0, 24),
    "left_padded": lambda: (*_padded(prompt()), PADDING, 24),
    "one_token_padded": lambda: (*_padded(prompt(1)), PADDING, 24),
}


@lru_cache(maxsize=1)  # the rows of a family run one after another
def target(kind: str, attention: str = DEFAULT) -> PreTrainedModel:
    if attention == DEFAULT:
        return tiny_target(kind)
    try:
        return tiny_target(kind, attn_implementation=attention)
    except ValueError as error:
        pytest.skip(f"{kind} has no {attention} ({str(error)[:60]}...); its eager rows run beside this one")


@lru_cache(maxsize=len(PROMPTS))
def plain(kind: str, attention: str, name: str) -> Any:
    model, (ids, mask, _, new) = target(kind, attention), PROMPTS[name]()
    return type(model).generate(model, ids, **_call(mask, new))


def _call(mask: Tensor | None, new: int) -> dict[str, Any]:
    call = {"max_new_tokens": new, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    return call if mask is None else call | {"attention_mask": mask}


def compare(kind: str, attention: str, pattern: str, name: str = "prompt") -> None:
    model, (ids, mask, padding, new) = target(kind, attention), PROMPTS[name]()
    expected = plain(kind, attention, name)
    drafter = drafter_for(model, expected.sequences[:, padding:], pattern)
    drafted = generate(model, ids, assistant=drafter, **_call(mask, new))
    assert_equal_outputs(drafted, expected)
    assert last_trace().fallback is None
    accepted = [record.accepted for record in last_trace().rounds]
    assert pattern != "all" or accepted[:-1] == [7] * (len(accepted) - 1), "whole blocks, or nothing is tested"
    assert pattern != "spoiled" or sum(accepted) > len(accepted), "two of three tokens"


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_of_a_tiny_target_varies(kind):
    new = plain(kind, DEFAULT, "prompt").sequences[0, prompt().shape[1] :].tolist()
    assert len(set(new)) >= 6, "a target that repeats itself hides what a drafter breaks"
    assert len(set(new[NEW // 2 :])) >= 3


@pytest.mark.parametrize(
    ("pattern", "name"), [("all", "prompt"), ("spoiled", "prompt"), ("spoiled", "one_token_padded")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_family_equals_plain(kind, pattern, name):
    compare(kind, DEFAULT, pattern, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROMPTS))
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_family_equals_plain_in_both_attentions_with_every_drafter(kind, attention, pattern, name):
    compare(kind, attention, pattern, name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_family_equals_plain_far_past_its_window(kind):
    model = target(kind)
    call = _call(None, 110)
    expected = type(model).generate(model, prompt(), **call)
    for pattern in ("all", "spoiled"):
        drafted = generate(model, prompt(), assistant=drafter_for(model, expected.sequences, pattern), **call)
        assert_equal_outputs(drafted, expected)
