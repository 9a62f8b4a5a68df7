"""The card of one token: by pointer, by key, by touch; closed by Escape; inside the window at every width."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.demo.browser.conftest import Viewer
from tests.demo.browser.messages import draft_round, finished, message, story, text_of

ROUNDS = story()
PICKED = """(() => {
    const token = document.querySelector(".dv .picked");
    return token && token.dataset.r + "." + (token.dataset.i === undefined ? "x" + token.dataset.x : token.dataset.i);
})()"""


def token(viewer: Viewer, number: int, index: int, view: str = "rows"):
    return viewer.page.locator(f".dv [data-part='{view}'] .tok[data-r='{number}'][data-i='{index}']")


def test_hover_shows_what_the_round_knows_and_leaving_hides_it(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=6))
    token(viewer, 3, 0).hover()
    said = viewer.part("card").inner_text()
    for fact in ("“ number”", "accepted draft", "round 3", "slot 1 of 7", "0.920", "0.900",
                 "1 of 7 drafts accepted, plus 1", "draft 20.1 ms · verify 63.2 ms"):  # fmt: skip
        assert fact in said, fact
    assert viewer.page.locator(".card del").all_inner_texts() == ["into", "parts", ":", "ten", "and", "two"]
    viewer.page.locator("#title").hover()
    assert viewer.part("card").is_hidden()


def test_own_rejected_and_prefill_tokens_have_their_own_words(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=6))
    token(viewer, 3, 1).hover()
    assert "target’s own token" in viewer.part("card").inner_text()
    assert "draft q" not in viewer.part("card").inner_text()
    rejected = viewer.page.locator(".dv [data-part='rows'] .rej[data-r='3']")
    rejected.nth(0).hover()
    assert "rejected draft" in viewer.part("card").inner_text()
    assert "0.012" in viewer.part("card").inner_text()
    rejected.nth(1).hover()
    assert "behind the first miss" in viewer.part("card").inner_text()
    assert "not recorded" in viewer.part("card").inner_text()
    token(viewer, 0, 0).hover()
    assert "prefill 410.0 ms" in viewer.part("card").inner_text()


def test_arrow_keys_walk_tokens_and_rounds_from_one_tab_stop(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=6))
    stops = viewer.page.locator(".dv .paper [tabindex='0']:visible, .dv .paper a:visible, .dv .paper button:visible")
    assert stops.count() == 1
    viewer.part("rows-box").focus()
    right, left, down, up = "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"
    walk = [(right, "0.0"), (right, "1.0"), (right, "1.1"), (down, "2.0"), (left, "1.x1"), (left, "1.x0"),
            (left, "1.5"), (up, "0.0"), (left, "0.0"), ("End", "5.5"), (right, "5.x0"), (right, "5.x1"),
            (right, "5.x1"), ("Home", "0.0")]  # fmt: skip
    for key, place in walk:
        viewer.page.keyboard.press(key)
        assert viewer.page.evaluate(PICKED) == place, key
        assert viewer.part("card").is_visible()
    viewer.page.keyboard.press("ArrowDown")
    assert viewer.part("spoken").text_content().startswith("“ answer”, accepted draft, round 1, slot 1 of 7")
    viewer.page.keyboard.press("Escape")
    assert viewer.part("card").is_hidden() and viewer.page.evaluate(PICKED) is None


def test_keys_reach_rejected_drafts_where_they_are_shown(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=6))
    viewer.part("rows-box").focus()
    for key in ("End", "ArrowRight"):
        viewer.page.keyboard.press(key)
    assert viewer.part("spoken").text_content().startswith("“ sevens”, rejected draft, round 5, slot 6 of 7")
    assert "0.012" in viewer.part("card").inner_text()
    viewer.part("show-rejected").uncheck()
    viewer.part("rows-box").focus()
    for key, place in (("End", "5.5"), ("ArrowRight", "5.5"), ("ArrowUp", "4.0"), ("ArrowLeft", "3.1")):
        viewer.page.keyboard.press(key)
        assert viewer.page.evaluate(PICKED) == place, key


def test_keys_follow_the_reading_order_of_the_flowing_text(viewer: Viewer) -> None:
    """There a rejected draft stands before the token that took its place."""
    viewer.part("view-text").check(force=True)
    viewer.part("show-rejected").check()
    viewer.send(message(ROUNDS, count=6))
    viewer.part("text-box").focus()
    for key, place in (("End", "5.5"), ("ArrowLeft", "5.x1"), ("ArrowLeft", "5.x0"), ("ArrowLeft", "5.4")):
        viewer.page.keyboard.press(key)
        assert viewer.page.evaluate(PICKED) == place, key


@pytest.mark.parametrize("view", ["rows", "text"])
def test_a_special_token_has_its_name_and_no_text(viewer: Viewer, view: str) -> None:
    rounds = [*ROUNDS[:2], draft_round(2, ["."], "|im_end|", ["|turn|", "", "no"], 0.7, cut=True)]
    viewer.part("view-" + view).check(force=True)
    viewer.send(message(rounds, whole=True))
    viewer.part("show-rejected").check()
    viewer.part(view + "-box").focus()
    viewer.page.keyboard.press("End")
    said = viewer.part("card").inner_text()
    assert said.startswith("<|im_end|>") and "target p" in said and "0.610" in said
    assert viewer.page.locator(".card del").all_inner_texts() == ["<|turn|>", "·", "no"]
    struck = viewer.page.locator(f".dv [data-part='{view}'] .rej[data-r='2']")
    assert [struck.nth(place).get_attribute("data-t") for place in range(3)] == ["<|turn|>", "·", "no"]
    drawn = (
        f"getComputedStyle(document.querySelector(\".dv [data-part='{view}'] [data-r='2'][data-i='1']\"), '::before')"
    )
    assert (viewer.page.evaluate(f"{drawn}.content") == '"<|im_end|>"') is (view == "rows")
    assert token(viewer, 2, 1, view).text_content() == ""
    viewer.part("view-text").check(force=True)
    viewer.settle()
    assert viewer.text() == text_of(rounds)


def test_a_token_without_text_or_name_says_what_it_may_be(viewer: Viewer) -> None:
    viewer.send(message([*ROUNDS[:2], draft_round(2, [""], "é", [], 0.7)], whole=True))
    token(viewer, 2, 0).hover()
    said = viewer.part("card").inner_text()
    assert said.startswith("(shows nothing: a special token, or part of a character)")


def test_the_first_tokens_probability_may_come_with_the_end(viewer: Viewer) -> None:
    unknown = [{**ROUNDS[0], "tokens": [["The", "own", 1, None, None]]}, *ROUNDS[1:]]
    viewer.send(message(unknown, count=6))
    token(viewer, 0, 0).hover()
    assert "not recorded" in viewer.part("card").inner_text()
    viewer.page.mouse.move(0, 0)
    viewer.send(finished(ROUNDS))
    viewer.part("rows-box").focus()
    viewer.page.keyboard.press("Home")
    assert "0.930" in viewer.part("card").inner_text()
    assert viewer.part("rows").locator(".row").count() == len(ROUNDS)


def test_walking_brings_the_token_into_sight(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    viewer.part("rows-box").focus()
    viewer.page.keyboard.press("Home")
    viewer.settle()
    box, first = viewer.part("rows-box").bounding_box(), token(viewer, 0, 0).bounding_box()
    assert box["y"] <= first["y"] and first["y"] + first["height"] <= box["y"] + box["height"]
    assert viewer.part("card").is_visible()


def test_click_keeps_the_card_until_it_is_closed(viewer: Viewer) -> None:
    viewer.part("view-text").check(force=True)
    viewer.send(finished(ROUNDS))
    token(viewer, 2, 3, "text").click()
    viewer.page.locator("#title").hover()
    assert "“ see”" in viewer.part("card").inner_text()
    token(viewer, 2, 3, "text").click()
    assert viewer.part("card").is_hidden()


def test_a_token_no_longer_shown_takes_its_card_along(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    token(viewer, 18, 0).click()
    viewer.part("back").click()
    viewer.part("back").click()
    viewer.settle()
    assert viewer.part("card").is_hidden()


@pytest.mark.parametrize("view", ["rows", "text"])
def test_tap_opens_the_card_inside_a_phone(open_page: Callable[..., Viewer], view: str) -> None:
    viewer = open_page(420, "dark", has_touch=True, is_mobile=True)
    viewer.part("view-" + view).check(force=True)
    viewer.send(finished(ROUNDS))
    for number in (1, 4, 9, 11, 15):
        for index in (0, len(ROUNDS[number]["tokens"]) - 1):
            token(viewer, number, index, view).tap()
            viewer.settle()
            card = viewer.part("card").bounding_box()
            assert card is not None
            assert card["x"] >= 0 and card["x"] + card["width"] <= 420, (number, index)
    viewer.part("where").tap()
    assert viewer.complaints == []
