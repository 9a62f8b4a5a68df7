"""Sampling keeps the target's distribution: exact enumeration on a small vocabulary, with drafts that get accepted."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from tests.scripted import scripted
from tests.tiny import prompt, tiny_target

SMALL = 5
DRAWS = 500
NEW = 3


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=SMALL, hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.6 if "lm_head" in name else 0.4)
    model.generation_config.eos_token_id = None
    return attach(model)


IDS = torch.tensor([[1, 4, 2]])


@torch.no_grad()
def exact_joint(model, warp) -> torch.Tensor:
    """Probability [SMALL ** NEW] of every continuation, one plain forward each."""
    joint = []
    for tail in itertools.product(range(SMALL), repeat=NEW):
        ids = torch.cat([IDS, torch.tensor([tail])], dim=1)
        logits = model(ids).logits[0, IDS.shape[1] - 1 : -1].float()
        steps = torch.stack([warp(row, ids[0, : IDS.shape[1] + place]) for place, row in enumerate(logits)])
        joint.append(steps.softmax(-1).gather(1, torch.tensor(tail)[:, None]).prod())
    return torch.stack(joint)


def _penalised(row, ids):
    row = row.clone()
    seen = ids.unique()
    row[seen] = torch.where(row[seen] < 0, row[seen] * 1.5, row[seen] / 1.5)
    return row


def _top_k(row, _):
    return row.masked_fill(row < row.topk(3).values[-1], -float("inf"))


@pytest.mark.parametrize(
    ("options", "warp", "path"),
    [
        ({"temperature": 0.7}, lambda row, _: row / 0.7, "vectorised"),
        ({"top_k": 3}, _top_k, "vectorised"),
        ({"repetition_penalty": 1.5}, _penalised, "stepwise"),
    ],
    ids=["temperature", "top_k", "repetition_penalty"],
)
def test_sampling_keeps_the_joint_distribution(model, options, warp, path):
    expected = exact_joint(model, warp)
    torch.manual_seed(0)
    likely = next(itertools.islice(itertools.product(range(SMALL), repeat=NEW), int(expected.argmax()), None))
    drafter = scripted(model, [*IDS[0].tolist(), *likely, 0, 0, 0, 0], mask_token_id=0, block_size=4)
    counts, accepted = torch.zeros(SMALL**NEW), 0
    base = {"do_sample": True, "top_k": 0, "max_new_tokens": NEW, **options}
    for _ in range(DRAWS):
        output = model.generate(IDS, assistant=drafter, **base)
        first, second, third = output[0, 3:].tolist()
        counts[(first * SMALL + second) * SMALL + third] += 1
        accepted += sum(record.accepted for record in last_trace().rounds)
    assert path in last_trace().acceptance
    assert accepted > DRAWS / 10, "a drafter that is never right would prove nothing"
    distance = 0.5 * (counts / DRAWS - expected).abs().sum()
    assert distance < _noise(expected), f"total variation {distance:.4f}"


def _noise(expected: torch.Tensor) -> float:
    """99.9 % of honest samples of this size lie nearer than this."""
    generator = torch.Generator().manual_seed(1)
    draws = torch.multinomial(expected.expand(2000, -1), DRAWS, replacement=True, generator=generator)
    counts = torch.zeros(2000, len(expected)).scatter_add_(1, draws, torch.ones(draws.shape))
    return float((0.5 * (counts / DRAWS - expected).abs().sum(1)).quantile(0.999))


def test_sampling_is_reproducible_under_a_seed_and_varies_without():
    model = attach(tiny_target())
    drafter = scripted(model, prompt()[0].tolist() + [5] * 40)
    texts = []
    for seed in (0, 0, 1, 2):
        torch.manual_seed(seed)
        texts.append(model.generate(prompt(), max_new_tokens=16, do_sample=True, assistant=drafter)[0].tolist())
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) > 1
