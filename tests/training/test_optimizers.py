"""Rates over a run, and which optimiser has which weight."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dflash_hf.errors import TrainingError
from dflash_hf.training.optimizers import Optimizers
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.schedule import rate_factor, total_steps

BASE = {"answers": ["a"], "output": "o", "steps": 3}
needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="Muon came with torch 2.9; make test has 2.13")


def layer():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4))


def test_rate_rises_linearly_and_falls_like_a_cosine():
    factors = [rate_factor(step, 100, 0.1) for step in range(101)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1.0 and factors[55] == pytest.approx(0.5) and factors[100] == pytest.approx(0.0)
    assert rate_factor(0, 100, 0.0) == 1.0


def test_total_steps_cover_the_epochs():
    assert total_steps(10, 4, steps=None, epochs=2) == 5
    assert total_steps(10, 4, steps=None, epochs=0.1) == 1
    assert total_steps(10, 4, steps=7, epochs=None) == 7


@needs_muon
def test_muon_moves_matrices_and_adamw_the_rest():
    module = layer()
    optimizers = Optimizers(module, Recipe.of({**BASE, "optimizer": "muon", "muon_learning_rate": 0.02}))
    sizes = {
        type(optimizer).__name__: [tuple(parameter.shape) for parameter in optimizer.param_groups[0]["params"]]
        for optimizer in optimizers.each
    }
    assert sizes == {"AdamW": [(4,), (4,), (4,)], "Muon": [(4, 6)]}
    optimizers.set_rate(1, 4, 0.5)
    assert [group["lr"] for optimizer in optimizers.each for group in optimizer.param_groups] == [6e-4, 0.02]
    optimizers.set_rate(3, 4, 0.5)
    assert optimizers.each[1].param_groups[0]["lr"] == pytest.approx(0.01)


@needs_muon
def test_optimizers_go_on_from_their_state():
    def run(module, optimizers, steps):
        for step in steps:
            optimizers.set_rate(step, 6, 0.2)
            optimizers.zero_grad()
            module(torch.arange(6.0)[None] + step).square().sum().backward()
            optimizers.step()

    recipe = Recipe.of({**BASE, "optimizer": "muon"})
    whole, broken = layer(), layer()
    run(whole, Optimizers(whole, recipe), range(6))
    first = Optimizers(broken, recipe)
    run(broken, first, range(3))
    again = layer()
    again.load_state_dict(broken.state_dict())
    second = Optimizers(again, recipe)
    second.load_state_dict(first.state_dict())
    run(again, second, range(3, 6))
    for mine, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_torch_without_muon_is_named(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(TrainingError, match="has no Muon"):
        Optimizers(layer(), Recipe.of({**BASE, "optimizer": "muon"}))
