"""Losses and position weights against the plain formulas, slot by slot."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dflash_hf.errors import TrainingError
from dflash_hf.target.logits import Scale
from dflash_hf.training.heads import FullHead
from dflash_hf.training.losses import LOSSES, WEIGHTS, Objective, dpace_weights, exponential_weights, weighted_loss
from dflash_hf.training.packs import NO_LABEL
from dflash_hf.training.vocabulary import Teacher, Tiles

BLOCKS, DRAFTED, WIDTH, VOCABULARY = 3, 4, 6, 19


NONE = torch.tensor([], dtype=torch.long)


def problem() -> tuple[Tensor, Tensor, FullHead, Teacher]:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(BLOCKS, DRAFTED, WIDTH, generator=draw).requires_grad_()
    labels = torch.tensor([[3, 7, 1, 18], [0, 2, NO_LABEL, NO_LABEL], [5, 5, 5, NO_LABEL]])
    head = FullHead(torch.randn(VOCABULARY, WIDTH, generator=draw), torch.randn(VOCABULARY, generator=draw))
    rows = torch.randint(0, 5, (BLOCKS, DRAFTED), generator=draw)
    return hidden, labels, head, Teacher(torch.randn(5, WIDTH, generator=draw), rows, Scale(0.8))


def slot_by_slot(objective: Objective) -> tuple[Tensor, float, float]:
    """Nested loops in plain Python over the paper's formulas."""
    hidden, labels, head, teacher = problem()
    rows = head.rows(0, NONE)
    total, weight = torch.zeros(()), 0.0
    for block in range(BLOCKS):
        drafted = [slot for slot in range(DRAFTED) if labels[block, slot] != NO_LABEL]
        q = [((hidden[block, slot] @ rows.weight.T + rows.bias) * 1.2).softmax(-1) for slot in drafted]
        p = [
            ((teacher.states[teacher.rows[block, slot]] @ rows.weight.T + rows.bias) * 0.8).softmax(-1)
            for slot in drafted
        ]
        sure = [float(q[slot][labels[block, slot]].detach()) for slot in drafted]
        for slot in drafted:
            if objective.loss == "ce":
                loss = -q[slot][labels[block, slot]].log()
            else:
                loss = (p[slot] * (p[slot] / q[slot]).log()).sum()
            if objective.loss == "hybrid":
                overlap = torch.minimum(p[slot], q[slot]).sum()
                share = math.exp(-objective.eta * float(overlap.detach()))
                loss = share * loss + (1 - share) * (1 - overlap)
            if objective.weights == "exponential":
                counts = math.exp(-slot / objective.gamma)
            else:
                a = objective.alpha
                counts = sum(math.prod((1 - a) * sure[i] + a for i in range(m + 1)) for m in drafted if m >= slot)
            total, weight = total + counts * loss, weight + counts
    return torch.autograd.grad(total, hidden, retain_graph=True)[0], float(total.detach()), weight


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("loss", LOSSES)
def test_any_loss_with_any_weights_equals_the_formulas(loss, weights):
    objective = Objective(loss=loss, weights=weights, gamma=2.5, alpha=0.3, eta=2.0)
    hidden, labels, head, teacher = problem()
    total, weight = weighted_loss(
        hidden, labels, head.rows(0, NONE), objective, scale=Scale(1.2), teacher=teacher, tiles=Tiles(2, 7)
    )
    gradient, expected, counted = slot_by_slot(objective)
    assert float(total.detach()) == pytest.approx(expected, rel=1e-5)
    assert float(weight) == pytest.approx(counted, rel=1e-5) and not weight.requires_grad
    torch.testing.assert_close(torch.autograd.grad(total, hidden)[0], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_sums_of_parts_are_the_sums_of_the_whole(weights):
    """What accumulation and several processes rely on."""
    objective = Objective(loss="hybrid", weights=weights)
    hidden, labels, head, teacher = problem()
    whole = weighted_loss(hidden, labels, head.rows(0, NONE), objective, teacher=teacher)
    parts = [
        weighted_loss(
            hidden[part], labels[part], head.rows(0, NONE), objective, teacher=replace(teacher, rows=teacher.rows[part])
        )
        for part in (slice(0, 1), slice(1, 3))
    ]
    for mine, split in zip(whole, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(mine, sum(split))


def test_cross_entropy_needs_no_teacher_and_says_so():
    hidden, labels, head, _ = problem()
    assert weighted_loss(hidden, labels, head.rows(0, NONE), Objective())[0] > 0
    assert [Objective(loss=loss).needs_teacher for loss in LOSSES] == [False, True, True]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_pack_without_labels_counts_for_nothing(weights):
    hidden, labels, head, _ = problem()
    total, weight = weighted_loss(
        hidden, torch.full_like(labels, NO_LABEL), head.rows(0, NONE), Objective(weights=weights)
    )
    total.backward()
    assert not total.any() and not weight.any() and not hidden.grad.any()


def test_exponential_weights_decay_from_one():
    torch.testing.assert_close(
        exponential_weights(4, gamma=2.0), torch.tensor([1.0, 0.60653, 0.36788, 0.22313]), atol=1e-5, rtol=0
    )


def test_dpace_weights_of_a_sure_drafter_count_the_slots_that_follow():
    sure, all_count = torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bool)
    assert dpace_weights(sure, all_count, alpha=0.5).tolist() == [[4.0, 3.0, 2.0, 1.0]]
    assert dpace_weights(torch.zeros(1, 4), all_count, alpha=0.0).tolist() == [[0.0] * 4]
    assert dpace_weights(torch.zeros(1, 3), all_count[:, :3], alpha=0.5).tolist() == [[0.875, 0.375, 0.125]]


def test_dpace_weights_carry_no_gradient():
    probability = torch.full((1, 3), 0.5, requires_grad=True)
    assert not dpace_weights(probability, torch.ones(1, 3, dtype=torch.bool), alpha=0.5).requires_grad


def test_dpace_weights_end_with_the_document():
    counts = torch.tensor([[True, True, False, False]])
    assert dpace_weights(torch.ones(1, 4), counts, alpha=0.5).tolist() == [[2.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "mse"}, "'mse'.*ce, kl, hybrid"),
        ({"weights": "flat"}, "'flat'.*exponential, dpace"),
        ({"gamma": 0.0}, "gamma 0.0"),
        ({"alpha": 1.5}, "alpha 1.5"),
        ({"eta": -1.0}, "eta -1.0"),
    ],
)
def test_an_objective_that_cannot_be_is_refused(change, message):
    with pytest.raises(TrainingError, match=message):
        Objective(**change)
