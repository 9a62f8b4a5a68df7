"""The recipe's options reach the loss: slots, anchors of an epoch, noise, scales, precision."""

from __future__ import annotations

import pytest
import torch

from dflash_hf.training.blocks import draft_hidden
from dflash_hf.training.draft_loss import DraftLoss, packs_for
from dflash_hf.training.features.features import OnTheFly
from dflash_hf.training.heads import FullHead, SampledHead, head_parameters
from dflash_hf.training.start import starting_drafter
from tests.training.world import World


@pytest.fixture(scope="module")
def world():
    return World(answers=8, new_tokens=20)


def packs(world, tmp_path, epoch=0, slots=6, first_slot=1, **changes):
    recipe = world.recipe(tmp_path, **changes)
    turns = [(epoch, document) for document in world.corpus(held_out=0).training[:3]]
    final = recipe.loss != "ce"
    features = OnTheFly(world.view, [0, 2], final=final)
    return packs_for(turns, features, recipe, slots=slots, mask_token_id=1, first_slot=first_slot)


def test_anchors_are_drawn_afresh_each_epoch_and_alike_in_a_rerun(world, tmp_path):
    first, again, later = (packs(world, tmp_path, epoch=epoch)[0].anchors.tolist() for epoch in (0, 0, 1))
    assert first == again != later


def test_feature_noise_is_relative_to_each_taps_spread(world, tmp_path):
    clean, noisy = (packs(world, tmp_path, feature_noise=noise)[0].taps for noise in (0.0, 0.1))
    ratio = (noisy - clean).std(dim=0) / clean.std(dim=0)
    assert 0.05 < ratio.median() < 0.15
    assert torch.equal(noisy, packs(world, tmp_path, feature_noise=0.1)[0].taps)


def test_documents_share_a_pack_up_to_its_tokens(world, tmp_path):
    assert [len(pack.block_counts) for pack in packs(world, tmp_path)] == [1, 1, 1]
    assert [len(pack.block_counts) for pack in packs(world, tmp_path, pack_tokens=10_000)] == [3]


def test_some_steps_of_a_causal_drafter_train_whole_blocks(world, tmp_path):
    trainer = world.trainer(tmp_path, causal=True, train_slots=3, whole_blocks_every=2, steps=4)
    slots = []
    while not trainer.finished:
        slots.append(trainer._slots())
        trainer._one_step()
    assert slots == [6, 3, 6, 3]


def test_each_side_is_scaled_as_it_decodes(world, tmp_path):
    recipe = world.recipe(tmp_path, loss="kl")
    drafter = starting_drafter(world.view, recipe)
    drafter.config.output_multiplier = 0.5
    module = DraftLoss(drafter, world.view, recipe)
    (pack,) = packs(world, tmp_path, loss="kl", pack_tokens=10_000)
    rows = FullHead(*head_parameters(world.view)).rows(0, torch.tensor([]))
    total, weight = module(pack, rows)
    hidden = draft_hidden(drafter, world.view, pack, "dense")
    mine = (hidden[:, 1:] @ rows.weight.T * 0.5).log_softmax(-1)
    theirs = (pack.final[pack.teacher_rows] @ rows.weight.T).log_softmax(-1)
    kl = (theirs.exp() * (theirs - mine)).sum(-1)
    weights = torch.exp(-torch.arange(5) / recipe.gamma).expand_as(kl) * (pack.labels >= 0)
    torch.testing.assert_close(total, (kl * weights).sum(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weight, weights.sum())


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_gradients(world, tmp_path):
    seen = []
    recipe = world.recipe(tmp_path, precision="bfloat16")
    module = DraftLoss(starting_drafter(world.view, recipe), world.view, recipe)
    module.drafter.layers[0].mlp.gate_proj.register_forward_hook(lambda _m, _i, output: seen.append(output.dtype))
    (pack,) = packs(world, tmp_path, pack_tokens=10_000)
    module(pack, FullHead(*head_parameters(world.view)).rows(0, torch.tensor([])))[0].backward()
    assert seen == [torch.bfloat16]
    assert {parameter.grad.dtype for parameter in module.parameters()} == {torch.float32}


def test_gradients_are_clipped_to_the_recipes_norm(world, tmp_path):
    trainer = world.trainer(tmp_path, clip=0.01, steps=1)
    norms = []
    step = trainer.optimizers.step
    trainer.optimizers.step = lambda: (
        norms.append(torch.stack([p.grad.norm() for p in trainer.drafter.parameters()]).norm()),
        step(),
    )
    trainer._one_step()
    assert float(norms[0]) == pytest.approx(0.01, rel=1e-3)


def test_evaluation_looks_at_the_recipes_number_of_documents(world, tmp_path):
    trainer = world.trainer(tmp_path, evaluation_documents=2)
    trainer.evaluation = {"all": trainer.corpus.training, "few": trainer.corpus.training[:1]}
    assert {name: len(documents) for name, documents in trainer.evaluated().items()} == {"all": 2, "few": 1}


def test_a_markov_head_under_a_sample_of_all_rows_has_the_full_heads_loss_and_gradients(world, tmp_path):
    recipe = world.recipe(tmp_path, head="markov", markov_rank=4, loss="kl")
    drafter = starting_drafter(world.view, recipe)
    torch.nn.init.normal_(drafter.head.markov_w2.weight)
    module, (weight, bias) = DraftLoss(drafter, world.view, recipe), head_parameters(world.view)
    (pack,) = packs(world, tmp_path, first_slot=0, loss="kl", pack_tokens=10_000)
    nothing = torch.tensor([], dtype=torch.long)
    found = []
    for head in (FullHead(weight, bias), SampledHead(weight, bias, torch.tensor([9, 4]), 200)):
        loss, _ = module(pack, head.rows(0, nothing))
        tables = (drafter.head.markov_w1.weight, drafter.head.markov_w2.weight)
        found.append((loss.detach(), *torch.autograd.grad(loss, tables)))
    for full, sampled in zip(*found, strict=True):
        torch.testing.assert_close(sampled, full, rtol=1e-4, atol=1e-4)
