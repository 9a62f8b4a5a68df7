"""Three forms of visibility against nested Python loops, seen through the attention functions they bring along."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dflash_hf.errors import TrainingError
from dflash_hf.training.packs import Pack, make_pack
from dflash_hf.training.visibility import form_for, lay_out
from tests.training.packed import FORMS, document, features, who_sees_whom


def pack_of(lengths: list[int], anchors: list[list[int]], slots: int) -> Pack:
    """Documents with these numbers of context rows."""
    documents = [document(length + 1, 1, str(number)) for number, length in enumerate(lengths)]
    places = [torch.tensor(each, dtype=torch.long) for each in anchors]
    return make_pack(documents, [features(doc, 4) for doc in documents], places, slots=slots, mask_token_id=1)


def attended(pack: Pack, form: str, per_row: int, window: int | None, causal: bool) -> Tensor:
    """Bool [Q, T + Q]: with queries of 0 and values of one-hot rows, the output is the mask over its row sums."""
    slots, rows = pack.ids.numel(), len(pack.taps) + pack.ids.numel()
    layer = SimpleNamespace(num_key_value_groups=1, training=False)
    attend, mask, _ = lay_out(pack, form, per_row).for_rule(window, causal)
    queries, keys = torch.zeros(1, 1, slots, rows), torch.randn(1, 1, rows, rows)
    with torch.compiler.set_stance("force_eager"):  # transformers compiles FlexAttention; a CPU needs no kernel
        output, _ = attend(layer, queries, keys, torch.eye(rows)[None, None], mask, scaling=1.0, dropout=0.0)
    assert output.shape == (1, slots, 1, rows)
    return output[0, :, 0] > 0


@st.composite
def layouts(draw):
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    anchors = [sorted(draw(st.sets(st.integers(0, length), max_size=4))) for length in lengths]
    if not any(anchors):
        anchors[0] = [1]
    return lengths, anchors


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20, deadline=None)
@given(layouts(), st.integers(2, 5), st.sampled_from([None, 1, 3, 6]), st.booleans(), st.integers(1, 3))
def test_every_form_sees_what_nested_loops_see(form, layout, slots, window, causal, per_row):
    lengths, anchors = layout
    seen = attended(pack_of(lengths, anchors, slots), form, per_row, window, causal)
    assert torch.equal(seen, who_sees_whom(lengths, anchors, slots, window, causal))


def test_chunked_masks_hold_no_more_than_a_chunk_can_see():
    """Its memory: each chunk of blocks against its own document, up to its last anchor and from its window on."""
    pack = pack_of([40, 30], [[3, 4, 20, 30], [29]], slots=4)
    _, (_, chunks), _ = lay_out(pack, "chunked", per_row=2).for_rule(None, False)
    assert [chunk.mask.shape for chunk in chunks] == [(8, 4 + 8), (8, 30 + 8), (4, 29 + 4)]
    _, (_, chunks), _ = lay_out(pack, "chunked", per_row=2).for_rule(5, True)
    assert [chunk.mask.shape for chunk in chunks] == [(8, 4 + 8), (8, 14 + 8), (4, 4 + 4)]


def test_flex_masks_skip_blocks_that_nobody_sees():
    pack = pack_of([300, 300], [list(range(1, 300, 5))] * 2, slots=8)
    _, mask, _ = lay_out(pack, "flex").for_rule(None, True)
    assert mask.sparsity() > 50  # two documents apart, and each block's slots from all other slots


def test_form_for_picks_by_device_and_refuses_what_cannot_train():
    assert form_for("auto", "cpu") == "chunked"
    assert form_for("auto", "cuda:0") == "flex"
    assert form_for("dense", "cpu") == "dense"
    with pytest.raises(TrainingError, match="CPU"):
        form_for("flex", "cpu")
    with pytest.raises(TrainingError, match="sparse.*auto, dense"):
        form_for("sparse", "cpu")
