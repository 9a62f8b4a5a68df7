"""Documents from answers, and which of them a step takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_hf.errors import TrainingError
from dflash_hf.training.answers.answers import Answer
from dflash_hf.training.documents import corpus_of, fingerprint, places_of_step, prompt_of, prompts_fingerprint


def answer(number, prompt=(1, 2, 3), said=(4, 5, 7), **fields):
    return Answer(f"a-{number}", list(prompt), list(said), True, "set", 0.0, 0, **fields)


def many(count, answers_each=1):
    return [
        answer(f"{number}/{again}", prompt=(number, 1, 2), said=(again, 5, 7))
        for number in range(count)
        for again in range(answers_each)
    ]


def test_corpus_splits_by_prompt_and_keeps_the_split_when_data_is_added():
    small = corpus_of(many(200, answers_each=3), max_length=64, held_out=5)
    large = corpus_of(many(400, answers_each=3), max_length=64, held_out=5)
    prompts = {
        side: {tuple(document.ids[:3].tolist()) for document in getattr(small, side)}
        for side in ("training", "held_out")
    }
    assert not prompts["training"] & prompts["held_out"]
    assert 20 <= len(prompts["held_out"]) <= 60
    assert prompts["held_out"] <= {tuple(document.ids[:3].tolist()) for document in large.held_out}
    assert len(small.training) + len(small.held_out) == 600
    assert not corpus_of(many(20), max_length=64, held_out=0).held_out


def of_two_sources(count, names=("a", "b")):
    """Two folders, one behind the other, each with prompts and ids of its own."""
    return [
        replace(answer(0, prompt=(number, 1 + folder, 2)), id=f"{name}-{number:05d}", source=f"folder {folder}")
        for folder, name in enumerate(names)
        for number in range(count)
    ]


def test_any_first_part_of_what_is_held_out_is_of_both_sources():
    held_out = corpus_of(of_two_sources(6000), max_length=64, held_out=50).held_out
    assert len(held_out) > 150
    for count in (24, 50):
        sources = Counter(document.source for document in held_out[:count])
        assert min(sources["folder 0"], sources["folder 1"]) > count / 4, sources


def test_the_same_documents_are_taken_whatever_the_order_and_the_ids_of_the_folders():
    def first(answers):
        return [prompt_of(document) for document in corpus_of(answers, max_length=64, held_out=50).held_out[:20]]

    two = of_two_sources(1000)
    assert first(two) == first(two[1000:] + two[:1000]) == first(of_two_sources(1000, names=("z", "y")))
    training = corpus_of(two, max_length=64, held_out=50).training
    assert [document.id for document in training] == sorted(document.id for document in training), "only τ is reordered"


def test_corpus_cuts_long_documents_and_counts_what_it_leaves_out():
    corpus = corpus_of(
        [answer(0), answer(1, said=range(20)), answer(2, prompt=range(9)), answer(3, said=[7]), answer(4, said=[])],
        max_length=8,
        held_out=0,
    )
    assert [len(document.ids) for document in corpus.training] == [6, 8]
    assert corpus.cut == 1 and corpus.answer_tokens == 3 + 5
    assert sorted(corpus.left_out.values()) == [1, 2]


def test_corpus_of_nothing_says_why():
    with pytest.raises(TrainingError, match="2: answer of fewer than two tokens"):
        corpus_of([answer(0, said=[7]), answer(1, said=[])], max_length=8, held_out=0)


@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 3))
def test_places_of_step_go_through_every_document_once_an_epoch(count, per_step, seed):
    seen = [place for step in range(3 * count) for place in places_of_step(step, per_step, count, seed)]
    for epoch in range(2):
        assert sorted(place for at, place in seen if at == epoch) == list(range(count))
    assert [epoch for epoch, _ in seen] == sorted(epoch for epoch, _ in seen)


def test_fingerprints_tell_other_documents_from_the_same():
    first = corpus_of(many(5), max_length=64, held_out=0).training
    again = corpus_of(many(5), max_length=64, held_out=0).training
    assert fingerprint(first) == fingerprint(again) != fingerprint(first[:-1])
    assert fingerprint(first) != fingerprint(first[::-1])
    assert prompts_fingerprint(first) == prompts_fingerprint(first[::-1]) != prompts_fingerprint(first[1:])
    assert torch.equal(first[0].ids, torch.tensor([0, 1, 2, 0, 5, 7]))
