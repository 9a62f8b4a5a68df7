"""Packs: what stands where, told place by place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_hf.errors import TrainingError
from dflash_hf.training.anchors import valid_anchors
from dflash_hf.training.features.features import Features
from dflash_hf.training.packs import NO_LABEL, first_fit, make_pack, pack_tokens
from tests.training.packed import document, features


def test_make_pack_lays_out_blocks_labels_and_teachers_of_each_document():
    documents = [document(10, 5, "a"), document(6, 5, "no anchors"), document(8, 3, "c")]
    made = [features(doc, final=16) for doc in documents]
    anchors = [valid_anchors(doc) for doc in documents]
    pack = make_pack(documents, made, anchors, slots=4, mask_token_id=1)
    assert pack.context_lengths == (9, 5, 7) and pack.block_counts == (4, 0, 4)
    assert pack.context_positions.tolist() == [*range(9), *range(5), *range(7)]
    assert pack.context_documents.tolist() == [0] * 9 + [1] * 5 + [2] * 7
    assert torch.equal(pack.taps, torch.cat([feature.taps for feature in made]))
    blocks = [(0, anchor) for anchor in range(5, 9)] + [(2, anchor) for anchor in range(3, 7)]
    assert list(zip(pack.block_documents.tolist(), pack.anchors.tolist(), strict=True)) == blocks
    for number, (which, anchor) in enumerate(blocks):
        ids = documents[which].ids.tolist()
        assert pack.ids[number].tolist() == [ids[anchor], 1, 1, 1]
        assert pack.positions[number].tolist() == list(range(anchor, anchor + 4))
        for slot in range(1, 4):
            label, row = int(pack.labels[number, slot - 1]), int(pack.teacher_rows[number, slot - 1])
            if anchor + slot < len(ids):
                assert label == ids[anchor + slot]
                assert torch.equal(pack.final[row], made[which].final[anchor + slot - 1])
            else:
                assert label == NO_LABEL


def test_make_pack_has_no_final_states_unless_all_features_have():
    documents = [document(10), document(9)]
    made = [features(documents[0], final=16), features(documents[1])]
    anchors = [valid_anchors(doc) for doc in documents]
    assert make_pack(documents, made, anchors, slots=4, mask_token_id=1).final is None


@pytest.mark.parametrize("rows", [(8, 9), (10, 9), (9, 8)])
def test_make_pack_refuses_features_of_another_text(rows):
    doc = document(10)
    made = Features(torch.zeros(rows[0], 4), torch.zeros(rows[1], 4))
    with pytest.raises(TrainingError, match="document a has 10 tokens"):
        make_pack([doc], [made], [valid_anchors(doc)], slots=4, mask_token_id=1)


def test_pack_to_moves_every_tensor():
    doc = document(10)
    pack = make_pack([doc], [features(doc)], [valid_anchors(doc)], slots=4, mask_token_id=1).to("meta")
    assert {pack.taps.device.type, pack.labels.device.type, pack.anchors.device.type} == {"meta"}
    assert pack.final is None and pack.context_lengths == (9,)


def test_pack_tokens_counts_context_and_slots():
    assert pack_tokens(document(10), anchors=4, slots=8) == 9 + 32


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(5, 40))
def test_first_fit_keeps_every_place_once_and_the_limit(sizes, limit):
    groups = first_fit(sizes, limit)
    assert sorted(place for group in groups for place in group) == list(range(len(sizes)))
    for number, group in enumerate(groups):
        assert group == sorted(group)
        assert sum(sizes[place] for place in group) <= limit or len(group) == 1
        for place in group:  # it had no room in an earlier group when its turn came
            for earlier in groups[:number]:
                held = sum(sizes[other] for other in earlier if other < place)
                assert held + sizes[place] > limit or not any(other < place for other in earlier)
