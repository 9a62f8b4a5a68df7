"""Losses against the plain full-vocabulary formula."""

from __future__ import annotations

import torch
from torch.nn import functional

from dflash_hf.training.losses import SampledHead, position_weights, weighted_cross_entropy


def test_position_weights_decay_from_one():
    weights = position_weights(4, gamma=2.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.60653, 0.36788, 0.22313]), atol=1e-5, rtol=0)


def test_a_head_with_all_others_is_the_full_head():
    torch.manual_seed(0)
    weight, hidden, labels = torch.randn(20, 6), torch.randn(5, 6), torch.tensor([3, -100, 7, 3, 11])
    head = SampledHead(weight, torch.tensor([3, 7, 11]), sample=100)
    rows, raised = head.draw(torch.Generator().manual_seed(0))
    weights = torch.tensor([1.0, 1.0, 0.5, 2.0, 0.25])
    loss, counted = weighted_cross_entropy(hidden, rows, raised, head.place(labels), weights)
    kept = labels != -100
    full = functional.cross_entropy(hidden[kept] @ weight.T, labels[kept], reduction="none")
    torch.testing.assert_close(loss, (full * weights[kept]).sum())
    assert counted == 3.75


def test_a_sampled_head_estimates_the_full_partition_function():
    torch.manual_seed(0)
    weight, hidden = 0.5 * torch.randn(400, 8), torch.randn(1, 8)
    head = SampledHead(weight, torch.tensor([1, 2, 3]), sample=40)
    full = (hidden @ weight.T).exp().sum()
    generator = torch.Generator().manual_seed(1)
    estimates = []
    for _ in range(400):
        rows, raised = head.draw(generator)
        estimates.append((hidden @ rows.T + raised).exp().sum())
    mean, spread = torch.stack(estimates).mean(), torch.stack(estimates).std() / 20
    assert abs(mean - full) < 4 * spread
