"""Blocks in training compute what blocks compute at run time, in every form, and do not see their anchor's row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.target.view import TargetView, view_target
from dflash_hf.training.anchors import valid_anchors
from dflash_hf.training.blocks import draft_hidden
from dflash_hf.training.packs import Pack, make_pack
from tests.scripted import tiny_config
from tests.tiny import tiny_target
from tests.training.packed import FORMS, document, features

DOCUMENTS = [document(14, 5, "a"), document(11, 2, "b"), document(9, 7, "c")]
RULES = {
    "bidirectional": {},
    "causal": {"layer_causal": [True] * 2},
    "windows": {"layer_windows": [4, None]},
    "convolutions": {"convolution": {"kernel_size": 3, "group_size": 8}},
    "causal windows": {"layer_causal": [True, False], "layer_windows": [3, 9]},
}


@pytest.fixture(autouse=True)
def flex_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FlexAttention's dense fallback differentiates on a CPU too; torch refuses because no CPU kernel does."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    with torch.compiler.set_stance("force_eager"):
        yield


def world(rule: str) -> tuple[TargetView, DFlashDrafter]:
    torch.manual_seed(0)
    target = tiny_target()
    drafter = DFlashDrafter(tiny_config(target, **RULES[rule])).eval()
    for name, kernel in drafter.named_parameters():
        if name.endswith("base_kernel"):
            torch.nn.init.normal_(kernel)
    return view_target(target), drafter


def pack_of(slots: int = 8) -> Pack:
    made = [features(doc) for doc in DOCUMENTS]
    return make_pack(DOCUMENTS, made, [valid_anchors(doc) for doc in DOCUMENTS], slots=slots, mask_token_id=1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", FORMS)
def test_training_blocks_equal_run_time_blocks(form, rule):
    """The very hidden states of decoding, block by block, with a growing context of each document."""
    view, drafter = world(rule)
    pack = pack_of()
    with torch.no_grad():
        packed = iter(draft_hidden(drafter, view, pack, form, per_row=3))
        for doc in DOCUMENTS:
            context, held, taps = drafter.new_context(), 0, features(doc).taps
            for anchor in valid_anchors(doc).tolist():
                drafter.inject(taps[None, held:anchor], torch.arange(held, anchor)[None], context)
                ids, held = torch.tensor([[int(doc.ids[anchor])] + [1] * 7]), anchor
                alone = drafter(view.embed(ids), position_ids=torch.arange(anchor, anchor + 8)[None], cache=context)
                torch.testing.assert_close(next(packed), alone.last_hidden_state[0], atol=1e-5, rtol=1e-5)
    assert next(packed, None) is None


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", ["flex", "chunked"])
def test_gradients_of_every_form_equal_those_of_the_dense_one(form, rule):
    view, drafter = world(rule)
    pack = pack_of()
    sought = torch.randn(len(pack.ids), 8, drafter.config.hidden_size, generator=torch.Generator().manual_seed(1))

    def gradients(kind: str) -> list[Tensor]:
        hidden = draft_hidden(drafter, view, pack, kind, per_row=3)
        return list(torch.autograd.grad((hidden * sought).sum(), list(drafter.parameters())))

    for mine, dense in zip(gradients(form), gradients("dense"), strict=True):
        torch.testing.assert_close(mine, dense, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", FORMS)
def test_a_block_draws_nothing_from_its_anchors_row_from_later_ones_or_from_other_documents(form, rule):
    """The known leak, by gradients: exactly 0, for the first and last block of each document."""
    view, drafter = world(rule)
    pack = pack_of()
    pack.taps.requires_grad_()
    hidden = draft_hidden(drafter, view, pack, form, per_row=3)
    ends = [sum(pack.block_counts[: number + 1]) for number in range(len(DOCUMENTS))]
    for number in sorted({0, *(end - 1 for end in ends), *ends[:-1]}):
        block = hidden[number]
        (drawn,) = torch.autograd.grad(block.square().sum() + block.sum(), pack.taps, retain_graph=True)
        own = pack.context_documents == pack.block_documents[number]
        before = own & (pack.context_positions < pack.anchors[number])
        assert not drawn[~before].any()
        newest = before & (pack.context_positions == pack.anchors[number] - 1)
        assert drawn[newest].abs().min() > 0, "the row right before the anchor is the one it must read"


@pytest.mark.parametrize("form", ["dense", "chunked"])
def test_autocast_computes_in_bfloat16_and_keeps_float32_gradients(form):
    view, drafter = world("causal")
    pack = pack_of()
    whole = draft_hidden(drafter, view, pack, form)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        short = draft_hidden(drafter, view, pack, form)
    torch.testing.assert_close(short.float(), whole, atol=0.1, rtol=0.1)
    assert not torch.equal(short.float(), whole)
    short.float().square().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in drafter.parameters())


def test_draft_hidden_takes_taps_stored_in_bfloat16():
    view, drafter = world("causal")
    made = [features(doc) for doc in DOCUMENTS]
    stored = [type(feature)(feature.taps.bfloat16(), None) for feature in made]
    pack = make_pack(DOCUMENTS, stored, [valid_anchors(doc) for doc in DOCUMENTS], slots=8, mask_token_id=1)
    assert draft_hidden(drafter, view, pack).dtype == torch.float32
