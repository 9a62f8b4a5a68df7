"""Blocks for training see what blocks see at run time, and no more: checked against nested loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.target.view import view_target
from dflash_hf.training.anchors import block_visibility, make_blocks, valid_anchors
from dflash_hf.training.blocks import draft_hidden
from dflash_hf.training.documents import Document
from tests.scripted import tiny_config
from tests.tiny import tiny_target


def document(length=14, prompt=5, width=64):
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(2, 90, (length,), generator=generator)
    return Document(ids, prompt, torch.randn(length - 1, width, generator=generator))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 11), min_size=1, max_size=4), st.integers(2, 5), st.integers(0, 12))
def test_block_visibility_equals_nested_loops(places, slots, context):
    seen = block_visibility(torch.tensor([places]), slots, context)[0, 0]
    assert seen.shape == (len(places) * slots, context + len(places) * slots)
    for query in range(seen.shape[0]):
        for key in range(seen.shape[1]):
            before_anchor = key < context and key < places[query // slots]
            own_block = key >= context and (key - context) // slots == query // slots
            assert bool(seen[query, key]) == (before_anchor or own_block)


def test_valid_anchors_are_answer_tokens_with_a_successor():
    assert valid_anchors(document(length=9, prompt=5)).tolist() == [5, 6, 7]
    assert valid_anchors(document(length=6, prompt=5)).tolist() == []


def test_make_blocks_labels_the_successors_and_pads_the_last_row():
    doc = document(length=10, prompt=5)
    blocks = make_blocks(doc, valid_anchors(doc), slots=4, mask_token_id=1, per_row=3)
    assert blocks.ids.shape == (2, 12) and blocks.labels.shape == (2, 3, 3)
    for number, anchor in enumerate([5, 6, 7, 8]):
        row, place = divmod(number, 3)
        assert blocks.ids[row, place * 4 : place * 4 + 4].tolist() == [int(doc.ids[anchor]), 1, 1, 1]
        assert blocks.positions[row, place * 4 : place * 4 + 4].tolist() == list(range(anchor, anchor + 4))
        following = [int(doc.ids[i]) if i < 10 else -100 for i in range(anchor + 1, anchor + 4)]
        assert blocks.labels[row, place].tolist() == following
    assert (blocks.labels[1, 1:] == -100).all(), "places that only fill the row count for nothing"


@pytest.mark.parametrize("causal", [True, False])
def test_training_blocks_equal_run_time_blocks_and_do_not_see_the_anchor(causal):
    """The very hidden states of decoding; changing the anchor's own feature must change nothing (the known leak)."""
    torch.manual_seed(0)
    target = tiny_target()
    view = view_target(target)
    drafter = DFlashDrafter(tiny_config(target, layer_causal=[causal] * 2)).eval()
    doc = document()
    anchors = valid_anchors(doc)
    blocks = make_blocks(doc, anchors, slots=8, mask_token_id=1, per_row=3)
    with torch.no_grad():
        packed = draft_hidden(drafter, view, doc, blocks).flatten(0, 1)[: len(anchors)]
        for number, anchor in enumerate(anchors.tolist()):
            context = drafter.new_context()
            drafter.inject(doc.taps[None, :anchor], torch.arange(anchor)[None], context)
            ids = torch.tensor([[int(doc.ids[anchor])] + [1] * 7])
            alone = drafter(view.embed(ids), position_ids=torch.arange(anchor, anchor + 8)[None], cache=context)
            torch.testing.assert_close(packed[number], alone.last_hidden_state[0], atol=1e-5, rtol=1e-5)
