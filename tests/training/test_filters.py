from __future__ import annotations

import pytest

from dflash_hf.errors import OptionsError, TrainingError
from dflash_hf.training.prompts.filters import Limits, Screen, is_repetitive
from dflash_hf.training.prompts.overlap import HeldOut
from dflash_hf.training.prompts.prompts import Prompt
from tests.training.test_prompts import prompt

QUESTION = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
ANOTHER = "How far is it from here to the moon, and how long would a walk there take at a steady pace?"
CODE = "def add(a: int, b: int) -> int:\n    return a + b\n\ndef sub(a: int, b: int) -> int:\n    return a - b\n"


def test_screen_counts_what_it_drops_by_reason() -> None:
    def length(each: Prompt) -> int:
        if "refuse" in each.text:
            raise TrainingError("no such turns")
        return len(each.text.split())

    limits = Limits(min_chars=4, max_chars=200, min_tokens=2, max_tokens=40)
    screen = Screen(limits, HeldOut([ANOTHER]), length)
    texts = [
        QUESTION, " \n", "Hi", "x y " * 60, "a b c d " * 8, QUESTION.upper() + " ", QUESTION.replace("Natalia", "Ann"),
        ANOTHER + " Please!", "bad \ufffd text", "oneword", " ".join(map(str, range(45))), "please refuse this", CODE,
    ]  # fmt: skip
    kept = [text for text in texts if screen.admit(prompt("p", text))]
    assert kept == [QUESTION, CODE]
    assert screen.dropped == {
        "empty": 1, "under 4 characters": 1, "repetitive": 2, "duplicate": 1, "near duplicate": 1,
        "held out for evaluation": 1, "broken characters": 1, "under 2 tokens": 1, "over 40 tokens": 1,
        "refused by the chat template": 1,
    }  # fmt: skip


def test_screen_bounds_all_turns_and_protects_against_all() -> None:
    screen = Screen(Limits(max_chars=120), HeldOut([QUESTION]))
    assert not screen.admit(prompt("a", "Why?", "x" * 10 + " " + "y z" * 50, "Go on"))
    assert not screen.admit(prompt("b", "Why?", QUESTION, "Go on"))
    assert screen.dropped == {"over 120 characters": 1, "held out for evaluation": 1}


def test_screen_takes_the_same_words_after_other_turns_for_another_prompt() -> None:
    screen = Screen(Limits())
    assert screen.admit(prompt("a", "Why?", "So.", "Go on")) and screen.admit(prompt("b", "Why?", "Because.", "Go on"))
    assert not screen.admit(prompt("c", "why?", "So.", "Go  on")) and screen.dropped == {"duplicate": 1}


def test_screen_keeps_near_duplicates_when_told_to() -> None:
    screen = Screen(Limits(near_duplicates=2))
    assert screen.admit(prompt("a", QUESTION)) and screen.admit(prompt("b", QUESTION.replace("Natalia", "Ann")))
    assert not screen.admit(prompt("c", QUESTION))


def test_screen_does_not_remember_what_it_drops() -> None:
    screen = Screen(Limits(max_chars=100))
    assert not screen.admit(prompt("a", QUESTION + " And then she sold ten more."))
    assert screen.admit(prompt("b", QUESTION + " And"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ha " * 40, True), ("!" * 40, True), ("a" * 20, True), ("Same line.\n" * 6, True), (CODE, False)]
    + [(QUESTION, False), ("a" * 19, False), ("ha " * 10, False)],
)
def test_is_repetitive_needs_more_than_half_repeated(text: str, expected: bool) -> None:
    assert is_repetitive(text) is expected


@pytest.mark.parametrize("bad", [{"min_chars": 9, "max_chars": 8}, {"min_tokens": 2, "max_tokens": 1}])
def test_limits_refuse_bounds_nothing_can_meet(bad: dict[str, int]) -> None:
    with pytest.raises(OptionsError, match="there are none"):
        Limits(**bad)
    with pytest.raises(OptionsError, match="above 0"):
        Limits(near_duplicates=0.0)
