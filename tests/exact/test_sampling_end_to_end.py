"""The same through ``generate`` on a real network: draws become branches, so the comparison is exact."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from tests.scripted import scripted
from tests.tiny import prompt, tiny_target

SIZE = 3
IDS = torch.tensor([[1, 2, 1]])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.6 if "lm_head" in name else 0.4)
    model.generation_config.eos_token_id = None
    return attach(model)


@torch.no_grad()
def exact_joint(model, warp, new):
    """Probability of every continuation, one plain forward each."""
    joint = {}
    for tail in itertools.product(range(SIZE), repeat=new):
        ids = torch.cat([IDS, torch.tensor([tail])], dim=1)
        logits = model(ids).logits[0, IDS.shape[1] - 1 : -1].float()
        steps = torch.stack([warp(row, ids[0, : IDS.shape[1] + place]) for place, row in enumerate(logits)])
        joint[tail] = float(steps.double().softmax(-1).gather(1, torch.tensor(tail)[:, None]).prod())
    return joint


def _penalised(row, ids):
    row, seen = row.clone(), ids.unique()
    row[seen] = torch.where(row[seen] < 0, row[seen] * 1.5, row[seen] / 1.5)
    return row


def _top_k(row, _):
    return row.masked_fill(row < row.topk(2).values[-1], -float("inf"))


@pytest.mark.filterwarnings("ignore:.*mask token 0 is the target's padding")
@pytest.mark.parametrize(
    ("proposals", "new"), [("argmax", 3), pytest.param("argmax", 4, marks=pytest.mark.slow), ("sampled", 3)]
)
@pytest.mark.parametrize(
    ("options", "warp", "path"),
    [
        ({"temperature": 0.7}, lambda row, _: row / 0.7, "vectorised"),
        ({"top_k": 2}, _top_k, "vectorised"),
        ({"repetition_penalty": 1.5}, _penalised, "stepwise"),
    ],
    ids=["temperature", "top_k", "repetition_penalty"],
)
def test_generate_keeps_the_joint_distribution(model, branches, options, warp, path, proposals, new):
    expected = exact_joint(model, warp, new)
    likely = max(expected, key=expected.get)
    drafter = scripted(model, [*IDS[0].tolist(), *likely, 0, 0, 0], mask_token_id=0, block_size=4)
    drafter.sharpness = 1.5
    call = {"do_sample": True, "top_k": 0, "max_new_tokens": new, "dflash": {"proposals": proposals}, **options}
    accepted = []

    def run():
        output = model.generate(IDS, assistant=drafter, **call)
        accepted.append(sum(record.accepted for record in last_trace().rounds))
        return tuple(output[0, IDS.shape[1] :].tolist())

    found = branches.distribution(run)
    rule = "ratio" if proposals == "sampled" else "point mass"
    assert path in last_trace().acceptance and rule in last_trace().acceptance
    assert sum(accepted) > len(accepted) / 4, "a drafter that is never right would prove nothing"
    for text in expected.keys() | found.keys():
        assert found.get(text, 0.0) == pytest.approx(expected.get(text, 0.0), abs=1e-5), text


@pytest.mark.parametrize("proposals", ["argmax", "sampled"])
def test_sampling_is_reproducible_under_a_seed_and_varies_without(proposals):
    model = attach(tiny_target())
    drafter = scripted(model, prompt()[0].tolist() + [5] * 40)
    texts = []
    for seed in (0, 0, 1, 2):
        torch.manual_seed(seed)
        call = {"max_new_tokens": 16, "do_sample": True, "dflash": {"proposals": proposals}}
        texts.append(model.generate(prompt(), assistant=drafter, **call)[0].tolist())
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) > 1


@pytest.mark.parametrize("proposals", ["argmax", "sampled"])
def test_draws_with_one_outcome_are_greedy(proposals):
    """top_k=1 and a temperature near zero reach the acceptance rule, whatever is proposed."""
    model = attach(tiny_target())
    greedy = type(model).generate(model, prompt(), max_new_tokens=20, do_sample=False)
    for options in ({"top_k": 1}, {"temperature": 1e-4}):
        for spoil in (lambda place: False, lambda place: place % 3 == 0):
            drafter = scripted(model, greedy, spoil)
            drafter.sharpness = 3.0
            call = {"max_new_tokens": 20, "do_sample": True, "dflash": {"proposals": proposals}, **options}
            assert torch.equal(model.generate(prompt(), assistant=drafter, **call), greedy)
