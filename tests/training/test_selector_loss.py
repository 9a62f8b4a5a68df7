"""The selector's loss against a loop in float64 over slots and candidates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dflash_hf.drafter.heads.selector import SelectorHead
from dflash_hf.target.logits import Scale
from dflash_hf.training.heads import HeadRows
from dflash_hf.training.losses import WEIGHTS, Objective
from dflash_hf.training.packs import NO_LABEL
from dflash_hf.training.selector_loss import best_columns, selector_loss
from dflash_hf.training.vocabulary import Tiles
from tests.training.test_vocabulary import Largest

BLOCKS, DRAFTED, WIDTH, RANK, TOKENS, BEST = 3, 4, 6, 5, 19, 6
SCALE = Scale(0.8, 5.0)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def world(reduced: bool):
    torch.manual_seed(0)
    selector = SelectorHead(width=WIDTH, rank=RANK, top_k=BEST, tokens=TOKENS)
    vocabulary = torch.tensor([0, 2, 3, 5, 7, 11, 12, 18]) if reduced else None
    size = TOKENS if vocabulary is None else len(vocabulary)
    bias = None if reduced else random(size, seed=2)
    places = None
    if vocabulary is not None:
        places = torch.full((TOKENS,), NO_LABEL).index_copy(0, vocabulary, torch.arange(size))
    head = HeadRows(random(size, WIDTH, seed=1), bias, places=places)
    labels = torch.tensor([[3, 7, 2, 18], [0, 2, NO_LABEL, NO_LABEL], [5, 6, 12, NO_LABEL]])
    before = torch.cat([torch.tensor([[4], [9], [9]]), labels[:, :-1].clamp(min=0)], dim=1)
    return selector, random(BLOCKS, DRAFTED, WIDTH, seed=3), labels, before, head, vocabulary


def slot_by_slot(selector, hidden, labels, before, head, vocabulary, objective):
    a, b, w = (
        table.weight.double()
        for table in (selector.predecessor_codebook, selector.successor_codebook, selector.hidden_projection)
    )
    ids = list(range(TOKENS)) if vocabulary is None else vocabulary.tolist()
    total, weight, learned = torch.zeros((), dtype=torch.float64), 0.0, 0
    for block in range(BLOCKS):
        kept, reached = [], []
        for slot in range(DRAFTED):
            label = int(labels[block, slot])
            if label not in ids:
                reached.append(0.0)
                continue
            h = hidden[block, slot].double()
            logits = head.weight.double() @ h + (0 if head.bias is None else head.bias.double())
            logits = (5.0 * torch.tanh(logits * 0.8 / 5.0)).detach()
            best = sorted(range(len(ids)), key=lambda column: -float(logits[column]))[:BEST]
            predecessor = a[int(before[block, slot])]
            scores = torch.stack([logits[c] + ((predecessor * (w @ h)) * b[ids[c]]).sum() for c in best])
            found = [place for place, column in enumerate(best) if ids[column] == label]
            log_q = scores.log_softmax(0)[found[0]] if found else torch.zeros((), dtype=torch.float64)
            learned += len(found)
            sure = float(log_q.detach().exp()) if found else 0.0
            reached.append((1 - objective.alpha) * sure + objective.alpha)
            kept.append((slot, log_q))
        for slot, log_q in kept:
            if objective.weights == "exponential":
                counts = float(torch.exp(torch.tensor(-slot / objective.gamma, dtype=torch.float64)))
            else:
                counts = sum(float(torch.tensor(reached[: m + 1]).prod()) for m in range(slot, DRAFTED))
            total, weight = total - counts * log_q, weight + counts
    return total, weight, learned


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("reduced", [False, True], ids=["all tokens", "reduced"])
def test_selector_loss_and_its_gradients_equal_a_loop(reduced, weights):
    objective = Objective(weights=weights, gamma=2.5, alpha=0.3)
    selector, hidden, labels, before, head, vocabulary = world(reduced)
    hidden.requires_grad_()
    expected, weight, learned = slot_by_slot(selector, hidden, labels, before, head, vocabulary, objective)
    total, counted = selector_loss(
        selector, hidden, labels, before, head, objective, vocabulary=vocabulary, scale=SCALE, tiles=Tiles(2, 8)
    )
    assert 1 < learned < int((labels >= 0).sum()), "some labels are candidates, some are not"
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)
    assert float(counted) == pytest.approx(weight, rel=1e-5)
    wanted = (hidden, *selector.parameters())
    mine, loop = (torch.autograd.grad(each, wanted, retain_graph=True) for each in (total, expected))
    for one, another in zip(mine, loop, strict=True):
        assert another.abs().max() > 0
        torch.testing.assert_close(one, another, rtol=1e-4, atol=1e-5)


def test_candidates_are_found_without_all_logits_at_hand():
    hidden, head = random(600, 8, seed=0), HeadRows(random(5000, 8, seed=1))
    with Largest() as largest:
        values, columns = best_columns(hidden, head, 4, tiles=Tiles(32, 256))
    assert largest.elements <= head.weight.numel(), "of 600 x 5000 logits"
    assert torch.equal(columns, (hidden @ head.weight.T).topk(4).indices)
    torch.testing.assert_close(values, (hidden @ head.weight.T).topk(4).values)


def test_no_slots_with_a_label_are_no_loss():
    selector, hidden, labels, before, head, _ = world(False)
    none = torch.full_like(labels, NO_LABEL)
    assert [each.item() for each in selector_loss(selector, hidden, none, before, head, Objective())] == [0.0, 0.0]
