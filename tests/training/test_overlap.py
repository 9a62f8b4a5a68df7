from __future__ import annotations

import random

import pytest

from dflash_hf.training.prompts.overlap import HeldOut, NearDuplicates, words


def jaccard(first: str, second: str) -> float:
    """By lists of strings, without hashes or an index."""
    sets = []
    for text in (first, second):
        found = words(text)
        sets.append({" ".join(found[start : start + 5]) for start in range(max(1, len(found) - 4))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("threshold", [0.3, 0.7, 1.0])
def test_near_duplicates_agree_with_comparing_every_pair(threshold: float) -> None:
    draw = random.Random(0)
    texts: list[str] = []
    for _ in range(300):
        if texts and draw.random() < 0.7:
            text = draw.choice(texts).split()
            for _ in range(draw.randrange(3)):
                text[draw.randrange(len(text))] = draw.choice("abcdefg")
        else:
            text = [draw.choice("abcdefg") for _ in range(draw.randrange(3, 40))]
        texts.append(" ".join(text))
    near, kept = NearDuplicates(threshold), []
    for text in texts:
        expected = all(jaccard(text, other) < threshold for other in kept)
        assert near.admit(text) is expected
        if expected:
            kept.append(text)
    assert 30 < len(kept) < 290, "both answers must have occurred"


def test_near_duplicates_of_another_context_are_others() -> None:
    near = NearDuplicates(0.7)
    assert near.admit("Go on", "first talk") and near.admit("Go on", "second talk") and near.admit("Go on")
    assert not near.admit("go on!", "second talk")


SENTENCE = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SENTENCE, True),
        (SENTENCE.upper().replace(" ", ", "), True),
        ("and then " + " ".join(SENTENCE.split()[:13]), True),
        ("and then " + " ".join(SENTENCE.split()[:12]), False),
        ("please: What is it?", False),
        ("what is it", True),
        ("Tell me: a short prompt of eight words in all!", True),
        ("Tell me: a short prompt of eight words in", False),
        ("!!", True),
        ("", False),
    ],
)
def test_held_out_is_given_away_by_a_long_run_or_the_same_words(text: str, expected: bool) -> None:
    held_out = HeldOut([SENTENCE, "What is it?", "A short prompt of eight words in all.", "!!"])
    assert len(held_out) == 4
    assert held_out.given_away_by(text) is expected
    assert not HeldOut().given_away_by(text)


def test_held_out_counts_characters_where_words_have_no_spaces() -> None:
    held_out = HeldOut(["请写一个函数来计算两个数字的和并返回结果"])
    assert held_out.given_away_by("现在请写一个函数来计算两个数字的差")
    assert not held_out.given_away_by("请写一个函数来排序")
