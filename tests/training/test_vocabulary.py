"""Chunked statistics against the plain formulas over materialised logits, and what they may hold in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from dflash_hf.target.logits import Scale
from dflash_hf.training.heads import HeadRows
from dflash_hf.training.vocabulary import Teacher, Tiles, linear_statistics, tiles_for

ROWS, WIDTH, HEAD = 7, 5, 23
EVERYTHING = ("ce", "kl", "overlap", "label_probability")
# Tiles that hold everything, and ones that divide neither the rows nor the head.
TILES = (Tiles(ROWS, HEAD), Tiles(3, HEAD), Tiles(4, 6), Tiles(1, 1), Tiles(50, 50))
PLAIN = (Scale(), Scale())
SCALED = (Scale(1.7, 4.0), Scale(0.6, 3.0))


def problem(bias: bool = True, raised: bool = True) -> tuple[Tensor, HeadRows, Tensor, Teacher]:
    """float64; the teacher has fewer rows than there are slots, in no order."""
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    head = HeadRows(random(HEAD, WIDTH), random(HEAD) if bias else None, random(HEAD).abs() if raised else None)
    hidden = random(ROWS, WIDTH).requires_grad_()
    labels = torch.tensor([0, 22, 5, 6, 11, 12, 5])
    return hidden, head, labels, Teacher(random(4, WIDTH), torch.tensor([3, 0, 0, 1, 3, 2, 1]))


def logits_of(states: Tensor, head: HeadRows, scale: Scale) -> Tensor:
    logits = states @ head.weight.T
    if head.bias is not None:
        logits = logits + head.bias
    logits = logits * scale.multiplier
    if scale.softcap is not None:
        logits = scale.softcap * torch.tanh(logits / scale.softcap)
    return logits if head.raised is None else logits + head.raised


def plain(hidden: Tensor, head: HeadRows, labels: Tensor, scale: Scale, teacher: Teacher) -> dict[str, Tensor]:
    log_q = logits_of(hidden, head, scale).log_softmax(dim=-1)
    log_p = logits_of(teacher.states, head, teacher.scale).log_softmax(dim=-1)[teacher.rows]
    return {
        "ce": functional.nll_loss(log_q, labels, reduction="none"),
        "kl": functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=-1),
        "overlap": torch.minimum(log_q.exp(), log_p.exp()).sum(dim=-1),
        "label_probability": log_q.exp()[torch.arange(len(labels)), labels],
    }


@pytest.mark.parametrize("scales", [PLAIN, SCALED], ids=["plain", "scaled"])
@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("wanted", [EVERYTHING, ("ce",), ("kl",), ("overlap",), ("kl", "overlap")], ids=" ".join)
def test_statistics_and_gradients_equal_the_plain_formulas(wanted, tiles, scales):
    hidden, head, labels, teacher = problem()
    teacher = replace(teacher, scale=scales[1])
    expected = plain(hidden, head, labels, scales[0], teacher)
    found = linear_statistics(hidden, head, labels, wanted=wanted, scale=scales[0], teacher=teacher, tiles=tiles)
    for name in EVERYTHING:
        value = getattr(found, name)
        if name not in wanted:
            assert value is None
            continue
        torch.testing.assert_close(value, expected[name])
        if name in ("ce", "kl", "overlap"):
            by_row = torch.randn(ROWS, dtype=torch.float64)
            mine, dense = (
                torch.autograd.grad(each, hidden, by_row, retain_graph=True)[0] for each in (value, expected[name])
            )
            torch.testing.assert_close(mine, dense)
        else:
            assert not value.requires_grad


@pytest.mark.parametrize(("bias", "raised"), [(False, False), (True, False), (False, True)])
def test_heads_without_bias_or_raise_are_plain_too(bias, raised):
    hidden, head, labels, teacher = problem(bias, raised)
    expected = plain(hidden, head, labels, Scale(), teacher)
    found = linear_statistics(hidden, head, labels, wanted=EVERYTHING, teacher=teacher, tiles=Tiles(3, 5))
    for name in EVERYTHING:
        torch.testing.assert_close(getattr(found, name), expected[name])


@pytest.mark.parametrize("tiles", [Tiles(ROWS, HEAD), Tiles(2, 9)], ids=str)
def test_gradients_pass_gradcheck(tiles):
    hidden, head, labels, teacher = problem()

    def loss(states: Tensor) -> tuple[Tensor, ...]:
        found = linear_statistics(
            states, head, labels, wanted=("ce", "kl", "overlap"), scale=Scale(1.3, 5.0), teacher=teacher, tiles=tiles
        )
        return found.ce, found.kl, found.overlap

    assert torch.autograd.gradcheck(loss, (hidden,))


def test_a_teacher_that_agrees_has_no_divergence_and_full_overlap():
    hidden, head, labels, _ = problem()
    same = Teacher(hidden.detach(), torch.arange(ROWS))
    found = linear_statistics(hidden, head, labels, wanted=("kl", "overlap"), teacher=same, tiles=Tiles(3, 5))
    torch.testing.assert_close(found.kl, torch.zeros(ROWS, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(found.overlap, torch.ones(ROWS, dtype=torch.float64))
    assert torch.autograd.grad(found.kl.sum(), hidden)[0].abs().max() < 1e-12


def test_logits_far_out_stay_finite():
    hidden, head, labels, teacher = problem()
    far = Teacher(teacher.states * -500, teacher.rows)
    states = (hidden.detach() * 500).requires_grad_()
    found = linear_statistics(states, head, labels, wanted=EVERYTHING, teacher=far, tiles=Tiles(3, 5))
    (found.ce + found.kl + found.overlap).sum().backward()
    assert all(getattr(found, name).isfinite().all() for name in EVERYTHING) and states.grad.isfinite().all()


def test_without_gradients_nothing_is_kept_for_them():
    hidden, head, labels, teacher = problem()
    with torch.no_grad():
        found = linear_statistics(hidden, head, labels, wanted=EVERYTHING, teacher=teacher)
    assert not found.ce.requires_grad


def test_no_rows_give_no_loss_and_a_gradient_of_zero():
    _, head, _, teacher = problem()
    none = torch.zeros(0, WIDTH, dtype=torch.float64, requires_grad=True)
    empty = torch.zeros(0, dtype=torch.long)
    found = linear_statistics(none, head, empty, wanted=("ce", "kl"), teacher=Teacher(teacher.states, empty))
    (found.ce.sum() + found.kl.sum()).backward()
    assert found.ce.shape == (0,) and none.grad.shape == (0, WIDTH)


def test_under_autocast_products_are_bfloat16_and_sums_float32():
    hidden, head, labels, teacher = problem()
    single = HeadRows(head.weight.float(), head.bias.float(), head.raised.float())
    states = hidden.detach().float().requires_grad_()
    seen = Teacher(teacher.states.bfloat16(), teacher.rows)  # as cached features are
    with torch.autocast("cpu", dtype=torch.bfloat16), Products() as products:
        found = linear_statistics(states, single, labels, wanted=("ce", "kl", "overlap"), teacher=seen)
    assert products.kinds == {torch.bfloat16}
    expected = plain(hidden, head, labels, Scale(), teacher)
    for name in ("ce", "kl", "overlap"):
        assert getattr(found, name).dtype == torch.float32
        torch.testing.assert_close(getattr(found, name).double(), expected[name], atol=0.05, rtol=0.05)
    found.kl.sum().backward()
    assert states.grad.dtype == torch.float32
    torch.testing.assert_close(
        states.grad.double(), torch.autograd.grad(expected["kl"].sum(), hidden)[0], atol=0.1, rtol=0.1
    )


@pytest.mark.parametrize(("wanted", "products"), [(("ce",), 2), (("kl",), 3), (("kl", "overlap"), 4)])
def test_one_chunk_computes_nothing_twice(wanted, products):
    hidden, head, labels, teacher = problem()
    with Products() as counted:
        linear_statistics(hidden, head, labels, wanted=wanted, teacher=teacher, tiles=Tiles(ROWS, HEAD))
    assert counted.number == products


def test_memory_does_not_grow_with_rows_times_vocabulary():
    """The largest tensor made, forwards and backwards: rows x width, however large the vocabulary."""
    rows, width, vocabulary, tiles = 600, 16, 5000, Tiles(32, 256)
    states, weight = torch.randn(rows, width, requires_grad=True), torch.randn(vocabulary, width)
    labels = torch.arange(rows) * 7
    teacher = Teacher(torch.randn(100, width), torch.arange(rows) % 100)
    with Largest() as largest:
        found = linear_statistics(states, HeadRows(weight), labels, wanted=EVERYTHING, teacher=teacher, tiles=tiles)
        (found.ce + found.kl - found.overlap).sum().backward()
    assert largest.elements == max(rows * width, tiles.rows * tiles.vocabulary)


@pytest.mark.parametrize("vocabulary", [1, 100, 9000, 49152, 152064, 262144])
def test_tiles_bound_the_logits_at_hand_and_cut_rows_first(vocabulary):
    cpu, other = (tiles_for(vocabulary, torch.device(kind)) for kind in ("cpu", "meta"))
    assert cpu.rows * cpu.vocabulary <= 2**23 and other.rows * other.vocabulary <= 2**27
    assert cpu.vocabulary == min(vocabulary, 2**17) and other.vocabulary == vocabulary
    assert cpu.rows >= 64


class Products(TorchDispatchMode):
    """Counts matrix products, and collects their types."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self.kinds = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.number += 1
            self.kinds.add(args[-1].dtype)
        return func(*args, **(kwargs or {}))


class Largest(TorchDispatchMode):
    """Notes the largest tensor any operation puts out."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for part in made if isinstance(made, tuple | list) else (made,):
            if isinstance(part, Tensor) and not part._is_view():
                self.elements = max(self.elements, part.numel())
        return made
