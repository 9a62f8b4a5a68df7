"""Anchors: which tokens, and a draw that depends on its seed and the document alone."""

from __future__ import annotations

import pytest

from dflash_hf.training.anchors import draw_anchors, valid_anchors
from tests.training.packed import document


def test_valid_anchors_are_answer_tokens_with_a_successor():
    assert valid_anchors(document(length=9, prompt=5)).tolist() == [5, 6, 7]
    assert valid_anchors(document(length=6, prompt=5)).tolist() == []
    assert valid_anchors(document(length=5, prompt=5)).tolist() == []


@pytest.mark.parametrize("count", [0, 9, 50])
def test_draw_anchors_takes_all_where_no_fewer_are_asked_for(count):
    assert draw_anchors(document(), count, seed=1).tolist() == list(range(5, 13))


def test_draw_anchors_is_ascending_without_repeats_and_of_valid_anchors():
    drawn = draw_anchors(document(length=60), 20, seed=1).tolist()
    assert len(drawn) == 20 and drawn == sorted(set(drawn)) and set(drawn) <= set(range(5, 59))


def test_draw_anchors_depends_on_the_seed_and_the_document_alone():
    first, second = document(length=60, name="a"), document(length=60, name="b")
    drawn = draw_anchors(first, 20, seed=1).tolist()
    draw_anchors(second, 20, seed=1)  # what is drawn in between does not matter
    assert draw_anchors(first, 20, seed=1).tolist() == drawn
    assert draw_anchors(first, 20, seed=2).tolist() != drawn
    assert draw_anchors(second, 20, seed=1).tolist() != drawn


def test_draw_anchors_reaches_every_valid_anchor():
    doc = document(length=20)
    assert {place for seed in range(60) for place in draw_anchors(doc, 3, seed).tolist()} == set(range(5, 19))
