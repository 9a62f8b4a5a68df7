"""The two views, what each shows of rejected drafts, shading by confidence, and exact copying."""

from __future__ import annotations

import pytest

from tests.demo.browser.conftest import Viewer
from tests.demo.browser.messages import draft_round, finished, first_round, message, plain_round, story, text_of

ROUNDS = story()
SELECTED = """() => {
    const box = document.querySelector(".dv [data-part='text']");
    const range = document.createRange();
    range.selectNodeContents(box);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return selection.toString();
}"""
TEXTS = {
    "trailing newline": ["Hello", "\n"],
    "trailing newlines": ["Hello", "\n\n", "\n"],
    "leading newline": ["\n", "Hello"],
    "indentation": ["def f():\n", "    ", "return 1\n", "\t", "\tx\n"],
    "spaces": ["a  b", "   ", " c ", " "],
    "right to left": ["שלום ", "עולם", "\u202e", "abc", "\u202c", " مرحبا", "\n"],
    "zero width": ["a\u200b", "\u200d", "b\ufeff", "\u2060"],
    "emoji": ["👩‍👩‍👧", " ", "🇨🇭", "é"],
    "carriage returns": ["a\r\n", "b\r", "c"],
    "nothing yet": ["a", "", "é", "", ""],
}


def rounds_of(texts: list[str]) -> list[dict]:
    rounds = [first_round(texts[0])]
    for number, text in enumerate(texts[1:], start=1):
        rounds.append(draft_round(number, [text], "", ["no", "\n", " way"], 0.4 + number / 10))
    return rounds


def shown_text(viewer: Viewer) -> None:
    viewer.part("view-text").check(force=True)
    viewer.settle()


def test_rows_say_accepted_drafted_and_own(viewer: Viewer) -> None:
    viewer.send(message([*ROUNDS[:3], plain_round(3, "x", 0.9)], whole=True))
    seen = viewer.part("rows").locator(".row-c").all_inner_texts()
    assert seen == ["prefill", "5/7 +1", "7/7 +1", "plain"]
    row = viewer.part("rows").locator(".row").nth(1)
    assert row.locator(".tok").all_inner_texts() == [" answer", " is", " ", "8", "4", "."]
    assert row.locator(".tok.own").count() == 1 and row.locator(".rej").count() == 2
    assert row.locator(".row-c").get_attribute("aria-label") == "5 of 7 drafts accepted, plus 1"


def test_switching_views_keeps_the_run(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=6))
    assert viewer.part("rows-box").is_visible() and viewer.part("text-box").is_hidden()
    shown_text(viewer)
    assert viewer.part("text-box").is_visible() and viewer.part("rows-box").is_hidden()
    viewer.send(message(ROUNDS, count=10))
    assert viewer.text() == text_of(ROUNDS[:10])
    viewer.part("view-rows").check(force=True)
    viewer.settle()
    assert viewer.part("rows").locator("li:visible").count() == 10


def test_view_behind_is_drawn_once_the_run_is_over(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=10, whole=True))
    assert viewer.text() == ""
    viewer.send(finished(ROUNDS))
    assert viewer.text() == text_of(ROUNDS)
    viewer.part("back").click()
    shown_text(viewer)
    assert viewer.part("text").locator(".round:not([hidden])").count() == len(ROUNDS) - 1


def test_views_are_switched_by_key(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=6))
    viewer.part("view-rows").focus()
    viewer.page.keyboard.press("ArrowRight")
    viewer.settle()
    assert viewer.part("text-box").is_visible()


def test_rejected_drafts_show_in_rows_and_are_counted_in_text(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    visible = ".rej:visible"
    missed = sum(len(item["rejected"]) for item in ROUNDS)
    assert viewer.part("show-rejected").is_checked()
    assert viewer.part("rows").locator(visible).count() == missed
    viewer.part("show-rejected").uncheck()
    assert viewer.part("rows").locator(visible).count() == 0
    shown_text(viewer)
    assert not viewer.part("show-rejected").is_checked()
    assert viewer.part("text").locator(visible).count() == 0
    counts = viewer.part("text").locator(".count")
    assert [int(counts.nth(place).get_attribute("data-t")) for place in range(counts.count())] == [
        len(item["rejected"]) for item in ROUNDS if item["rejected"]
    ]
    viewer.part("show-rejected").check()
    assert viewer.part("text").locator(visible).count() == missed
    assert viewer.text() == text_of(ROUNDS)
    viewer.part("view-rows").check(force=True)
    assert not viewer.part("show-rejected").is_checked()  # each view remembers its own


def test_rejected_drafts_go_on_arriving_while_shown_in_text(viewer: Viewer) -> None:
    shown_text(viewer)
    viewer.part("show-rejected").check()
    viewer.send(message(ROUNDS, count=4))
    viewer.send(message(ROUNDS, count=9))
    assert viewer.part("text").locator(".rej:visible").count() == sum(len(item["rejected"]) for item in ROUNDS[:9])


def test_shading_needs_known_probabilities(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=6, probabilities=False))
    assert viewer.part("shade").is_disabled()
    viewer.send(message(ROUNDS, count=7))
    viewer.part("shade").check()
    tint = "index => getComputedStyle(document.querySelectorAll('.dv .rows-box .tok.draft')[index]).backgroundColor"
    assert viewer.page.evaluate(tint, 0) != viewer.page.evaluate(tint, 3)
    viewer.part("shade").uncheck()
    assert viewer.page.evaluate(tint, 0) == viewer.page.evaluate(tint, 3)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("rejected", [False, True])
def test_select_all_gives_exactly_the_text(viewer: Viewer, name: str, rejected: bool) -> None:
    shown_text(viewer)
    viewer.part("show-rejected").set_checked(rejected)
    viewer.send(message(rounds_of(TEXTS[name]), whole=True))
    assert viewer.text() == "".join(TEXTS[name])
    assert viewer.page.evaluate(SELECTED) == "".join(TEXTS[name])


def test_keys_select_the_text_alone_and_copy_it(viewer: Viewer) -> None:
    viewer.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown_text(viewer)
    viewer.send(finished(ROUNDS))
    viewer.part("text-box").focus()
    viewer.page.keyboard.press("Control+a")
    assert viewer.page.evaluate("getSelection().toString()") == text_of(ROUNDS)
    viewer.page.keyboard.press("Control+c")
    assert viewer.page.evaluate("navigator.clipboard.readText()") == text_of(ROUNDS)


def test_copy_button_gives_the_text_up_to_the_round_shown(viewer: Viewer) -> None:
    viewer.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    viewer.send(finished(ROUNDS))
    viewer.part("copy").click()
    viewer.page.wait_for_function("document.querySelector(\".dv [data-part='copy']\").textContent === 'Copied'")
    assert viewer.page.evaluate("navigator.clipboard.readText()") == text_of(ROUNDS)
    viewer.part("back").click()
    viewer.part("copy").click()
    viewer.settle()
    assert viewer.page.evaluate("navigator.clipboard.readText()") == text_of(ROUNDS[:-1])
