"""Statistics of corrected logits against a loop in float64, their gradients, and what they may hold in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dflash_hf.target.logits import Scale
from dflash_hf.training.corrected import corrected_statistics
from dflash_hf.training.drafter_head import Correction
from dflash_hf.training.heads import HeadRows
from dflash_hf.training.losses import LOSSES, WEIGHTS, Objective, weighted_loss
from dflash_hf.training.packs import NO_LABEL
from dflash_hf.training.vocabulary import Teacher, Tiles, linear_statistics
from tests.training.test_vocabulary import EVERYTHING, HEAD, ROWS, TILES, Largest, logits_of, problem

RANK = 4
SCALES = (Scale(1.7, 4.0), Scale(0.6, 3.0))


def random(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def corrected() -> Correction:
    return Correction(random(ROWS, RANK).requires_grad_(), random(HEAD, RANK, seed=6).requires_grad_())


def row_by_row(hidden, correction, head, labels, teacher, scale) -> dict[str, Tensor]:
    found = {name: [] for name in EVERYTHING}
    for row, label in enumerate(labels.tolist()):
        q = (logits_of(hidden[row], head, scale) + correction.weight @ correction.code[row]).softmax(dim=-1)
        p = logits_of(teacher.states[teacher.rows[row]], teacher.head, teacher.scale).softmax(dim=-1)
        found["ce"].append(-q[label].log())
        found["kl"].append(sum(p[v] * (p[v] / q[v]).log() for v in range(HEAD)))
        found["overlap"].append(sum(torch.minimum(p[v], q[v]) for v in range(HEAD)))
        found["label_probability"].append(q[label].detach())
    return {name: torch.stack(values) for name, values in found.items()}


@pytest.mark.parametrize("tiles", TILES, ids=str)
def test_corrected_statistics_and_all_gradients_equal_a_loop(tiles):
    """With soft caps, multipliers, head bias, raised rows, and a target's head of other rows than the drafter's."""
    hidden, head, labels, teacher = problem()
    other = replace(head, weight=random(*head.weight.shape, seed=9))
    teacher = replace(teacher, scale=SCALES[1], head=other)
    correction = corrected()
    expected = row_by_row(hidden, correction, head, labels, teacher, SCALES[0])
    found = corrected_statistics(
        hidden, correction, head, labels, wanted=EVERYTHING, scale=SCALES[0], teacher=teacher, tiles=tiles
    )
    inputs = (hidden, correction.code, correction.weight)
    for name in EVERYTHING:
        torch.testing.assert_close(getattr(found, name), expected[name])
        if name == "label_probability":
            continue
        by_row = random(ROWS, seed=11)
        mine, loop = (
            torch.autograd.grad(each, inputs, by_row, retain_graph=True)
            for each in (getattr(found, name), expected[name])
        )
        for one, another in zip(mine, loop, strict=True):
            torch.testing.assert_close(one, another)


def test_the_gradient_of_the_correction_passes_gradcheck():
    hidden, head, labels, teacher = problem()
    correction = corrected()

    def loss(code: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        found = corrected_statistics(
            hidden,
            Correction(code, weight),
            head,
            labels,
            wanted=("ce", "kl", "overlap"),
            scale=SCALES[0],
            teacher=teacher,
            tiles=Tiles(16, HEAD),
        )
        return found.ce, found.kl, found.overlap

    assert torch.autograd.gradcheck(loss, (correction.code, correction.weight))


def test_a_correction_of_nothing_is_no_correction():
    hidden, head, labels, teacher = problem()
    nothing = Correction(random(ROWS, RANK), torch.zeros(HEAD, RANK, dtype=torch.float64))
    teacher = replace(teacher, head=replace(head, weight=random(*head.weight.shape, seed=9)))
    one = corrected_statistics(hidden, nothing, head, labels, wanted=EVERYTHING, teacher=teacher)
    other = linear_statistics(hidden, head, labels, wanted=EVERYTHING, teacher=teacher, tiles=Tiles(3, 5))
    for name in EVERYTHING:
        torch.testing.assert_close(getattr(one, name), getattr(other, name))


def test_memory_does_not_grow_with_rows_times_vocabulary():
    rows, width, vocabulary, tiles = 600, 8, 5000, Tiles(32, 5000)
    states, weight = torch.randn(rows, width, requires_grad=True), torch.randn(vocabulary, width)
    correction = Correction(torch.randn(rows, 8, requires_grad=True), torch.randn(vocabulary, 8, requires_grad=True))
    teacher = Teacher(torch.randn(100, width), torch.arange(rows) % 100)
    labels = torch.arange(rows) * 7
    with Largest() as largest:
        found = corrected_statistics(
            states, correction, HeadRows(weight), labels, wanted=EVERYTHING, teacher=teacher, tiles=tiles
        )
        (found.ce + found.kl - found.overlap).sum().backward()
    assert largest.elements <= vocabulary * max(8, tiles.rows // 4)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("loss", LOSSES)
def test_weighted_losses_of_a_corrected_reduced_head_equal_a_loop_over_slots(loss, weights):
    """Four of nine tokens have a row; a label that has none counts for nothing, and ends the block for D-PACE."""
    objective = Objective(loss=loss, weights=weights, gamma=2.5, alpha=0.3)
    vocabulary, columns = torch.tensor([1, 4, 5, 8]), 4
    labels = torch.tensor([[1, 4, 7, 5], [8, 5, 1, NO_LABEL]])
    hidden, states, target = random(2, 4, 3), random(5, 3, seed=1), random(9, 3, seed=2)
    own, code, table = random(columns, 3, seed=3), random(2, 4, RANK, seed=4), random(columns, RANK, seed=7)
    table.requires_grad_()
    rows = torch.tensor([[0, 1, 2, 3], [4, 0, 1, 0]])
    places = torch.full((9,), NO_LABEL).index_copy(0, vocabulary, torch.arange(columns))
    theirs = HeadRows(target[vocabulary], places=places)
    total, weight = weighted_loss(
        hidden,
        labels,
        replace(theirs, weight=own),
        objective,
        teacher=Teacher(states, rows, head=theirs),
        correction=Correction(code, table),
    )
    expected, counted = torch.zeros((), dtype=torch.float64), 0.0
    for block in range(2):
        reached, kept = [], []
        for slot in range(4):
            label = int(labels[block, slot])
            if label not in vocabulary:
                reached.append(0.0)
                continue
            at = vocabulary.tolist().index(label)
            q = (own @ hidden[block, slot] + table @ code[block, slot]).softmax(-1)
            whole = (target @ states[rows[block, slot]]).softmax(-1)
            p = whole[vocabulary] / whole[vocabulary].sum()
            kl, overlap = (p * (p / q).log()).sum(), torch.minimum(p, q).sum()
            share = torch.exp(-objective.eta * overlap.detach())
            found = {"ce": -q[at].log(), "kl": kl, "hybrid": share * kl + (1 - share) * (1 - overlap)}[loss]
            reached.append(float((1 - objective.alpha) * q[at].detach() + objective.alpha))
            kept.append((slot, found))
        for slot, found in kept:
            if weights == "exponential":
                counts = float(torch.exp(torch.tensor(-slot / objective.gamma, dtype=torch.float64)))
            else:
                counts = sum(float(torch.tensor(reached[: m + 1]).prod()) for m in range(slot, 4))
            expected, counted = expected + counts * found, counted + counts
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-6)
    assert float(weight.detach()) == pytest.approx(counted, rel=1e-6)
    mine, loop = (torch.autograd.grad(each, table)[0] for each in (total, expected))
    torch.testing.assert_close(mine, loop, rtol=1e-5, atol=1e-6)
