"""The head's rows: all of them, or the corpus' and a sample that stands for the others."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dflash_hf.errors import TrainingError
from dflash_hf.target.logits import Scale, drafter_scale, target_scale
from dflash_hf.target.view import view_target
from dflash_hf.training.documents import Document
from dflash_hf.training.heads import FullHead, SampledHead, head_for, head_parameters
from dflash_hf.training.vocabulary import Teacher, linear_statistics
from tests.scripted import tiny_config
from tests.tiny import tiny_target

NONE = torch.tensor([], dtype=torch.long)
EVERYTHING = ("ce", "kl", "overlap", "label_probability")


def test_full_head_is_the_targets_own_rows_and_tokens_are_rows():
    target = tiny_target()
    weight, bias = head_parameters(view_target(target))
    assert bias is None and weight.data_ptr() == target.get_output_embeddings().weight.data_ptr()
    assert not weight.requires_grad
    rows = FullHead(weight, bias).rows(0, NONE)
    assert rows.weight is weight and rows.raised is None
    labels = torch.tensor([[4, -100], [0, 2]])
    assert torch.equal(rows.place(labels), labels)


def test_full_head_statistics_are_those_of_the_targets_own_logits():
    """Head bias, multiplier and soft cap included: what the model itself would say."""
    target = tiny_target("gemma3")
    target.config.get_text_config().final_logit_softcapping = 5.0
    view = view_target(target)
    ids = torch.tensor([[5, 9, 30, 2]])
    with torch.no_grad():
        logits = target(ids).logits[0].float()
        states = target.model(ids).last_hidden_state[0]
    weight, bias = head_parameters(view)
    found = linear_statistics(
        states, FullHead(weight, bias).rows(0, NONE), logits.argmax(-1), wanted=("ce",), scale=target_scale(view)
    )
    torch.testing.assert_close(found.ce, -logits.log_softmax(-1).amax(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", ["wrapped", "integers", "offloaded"])
def test_a_head_that_cannot_be_read_is_refused(head):
    plain = nn.Linear(4, 9, bias=False)
    if head == "wrapped":
        plain = nn.Sequential(plain)
    elif head == "integers":
        plain.weight = nn.Parameter(torch.zeros(9, 4, dtype=torch.int8), requires_grad=False)
    else:
        plain = plain.to("meta")
    with pytest.raises(TrainingError, match="my-target.*load the target unquantised"):
        head_parameters(SimpleNamespace(head=plain, name="my-target"))


def test_a_sampled_head_with_all_others_is_the_full_head():
    torch.manual_seed(0)
    weight, bias, hidden, states = torch.randn(20, 6), torch.randn(20), torch.randn(4, 6), torch.randn(2, 6)
    labels, teacher = torch.tensor([3, 7, 3, 19]), Teacher(states, torch.tensor([0, 1, 1, 0]))
    full, sampled = (
        FullHead(weight, bias).rows(0, NONE),
        SampledHead(weight, bias, torch.tensor([3, 7, 11]), 100).rows(0, NONE),
    )
    assert sorted(sampled.places.tolist()) == list(range(20)) and not sampled.raised.any()
    found, expected = (
        linear_statistics(hidden, rows, rows.place(labels), wanted=EVERYTHING, teacher=teacher)
        for rows in (sampled, full)
    )
    for name in EVERYTHING:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_a_sampled_head_places_the_common_tokens_the_steps_own_and_what_it_drew():
    weight, common = torch.randn(50, 6), torch.tensor([1, 4, 30])
    rows = SampledHead(weight, None, common, 10).rows("step 3", torch.tensor([30, 8]))
    assert rows.weight.shape == (14, 6) and rows.bias is None
    placed = rows.place(torch.arange(50))
    for token, place in enumerate(placed.tolist()):
        assert place == -100 or torch.equal(rows.weight[place], weight[token])
    assert placed[[1, 4, 8, 30]].tolist() == [0, 1, 2, 3] and int((placed >= 0).sum()) == 14
    assert rows.place(torch.tensor([-100, 8])).tolist() == [-100, 2]
    torch.testing.assert_close(rows.raised, torch.tensor([0.0] * 4 + [math.log(46 / 10)] * 10))


def test_head_for_takes_the_most_frequent_answer_tokens_as_common():
    view = view_target(tiny_target())
    documents = [Document("a", torch.tensor([9, 9, 9, 5, 5, 6]), 3), Document("b", torch.tensor([9, 5, 6, 7]), 1)]
    head = head_for(view, documents, 2, torch.device("cpu"))
    placed = head.rows(0, NONE).place(torch.arange(view.vocab_rows))
    assert placed[[5, 6]].tolist() == [0, 1] and int((placed >= 0).sum()) == 4
    assert isinstance(head_for(view, documents, None, torch.device("cpu")), FullHead)


def test_a_sampled_head_depends_on_the_seed_alone():
    head = SampledHead(torch.randn(50, 6), None, torch.tensor([1]), 10)
    first = head.rows(1, NONE).weight
    assert not torch.equal(head.rows(2, NONE).weight, first)
    assert torch.equal(head.rows(1, NONE).weight, first)


def test_a_sampled_head_estimates_the_full_partition_function():
    torch.manual_seed(0)
    weight, hidden = 0.5 * torch.randn(400, 8), torch.randn(1, 8)
    head = SampledHead(weight, None, torch.tensor([1, 2, 3]), sample=40)
    full = (hidden @ weight.T).exp().sum()
    estimates = torch.stack(
        [(hidden @ rows.weight.T + rows.raised).exp().sum() for rows in (head.rows(seed, NONE) for seed in range(400))]
    )
    assert abs(estimates.mean() - full) < 4 * estimates.std() / 20


def test_drafter_scale_is_the_drafters_own_or_else_the_targets():
    target = tiny_target("gemma3")
    target.config.get_text_config().final_logit_softcapping = 5.0
    view = view_target(target)
    assert drafter_scale(tiny_config(target), view) == Scale(1.0, 5.0)
    own = tiny_config(target, output_multiplier=0.5, final_logit_softcapping=7.0)
    assert drafter_scale(own, view) == Scale(0.5, 7.0)
