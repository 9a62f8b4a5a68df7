"""Replay: slider, steps, play, on runs that go on and runs that are over; every figure is that of the round shown."""

from __future__ import annotations

import pytest

from tests.demo.browser.conftest import Viewer
from tests.demo.browser.messages import finished, message, story, text_of

ROUNDS = story()
LAST = len(ROUNDS) - 1


def seek(viewer: Viewer, number: int) -> None:
    viewer.part("slider").evaluate(
        "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input', {bubbles: true})); }", str(number)
    )
    viewer.settle()


def visible_rows(viewer: Viewer) -> int:
    return viewer.part("rows").locator("li:not([hidden])").count()


@pytest.mark.parametrize("phase", ["done", "stopped", "failed"])
def test_slider_shows_the_run_as_it_was(viewer: Viewer, phase: str) -> None:
    viewer.send(finished(ROUNDS, phase=phase))
    for number in (0, 7, LAST - 1):
        seek(viewer, number)
        assert visible_rows(viewer) == number + 1
        assert viewer.part("where").inner_text() == f"round {number} / {LAST}"
        rounds = [item for item in ROUNDS[1 : number + 1] if item["drafted"]]
        tau = f"{sum(len(item['tokens']) for item in rounds) / len(rounds):.2f}" if rounds else "–"
        assert viewer.tile("tau") == tau
    seek(viewer, LAST)
    assert viewer.part("live").is_hidden()


def test_text_of_a_replay_is_what_was_written_by_then(viewer: Viewer) -> None:
    viewer.part("view-text").check(force=True)
    viewer.send(finished(ROUNDS))
    seek(viewer, 5)
    shown = viewer.page.evaluate(
        "[...document.querySelectorAll('.dv .text .round:not([hidden])')].map(node => node.textContent).join('')"
    )
    assert shown == text_of(ROUNDS[:6])


def test_steps_go_one_round_and_stop_at_the_ends(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    assert viewer.part("forward").is_disabled()
    viewer.part("back").click()
    viewer.part("back").click()
    viewer.settle()
    assert visible_rows(viewer) == LAST - 1
    viewer.part("forward").click()
    viewer.settle()
    assert visible_rows(viewer) == LAST
    seek(viewer, 0)
    assert viewer.part("back").is_disabled()
    viewer.part("live").click()
    viewer.settle()
    assert visible_rows(viewer) == LAST + 1


def test_slider_is_moved_by_key(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    viewer.part("slider").focus()
    for key in ("ArrowLeft", "ArrowLeft"):
        viewer.page.keyboard.press(key)
    viewer.settle()
    assert visible_rows(viewer) == LAST - 1
    assert viewer.part("slider").get_attribute("aria-valuetext") == f"round {LAST - 2} of {LAST}"
    viewer.page.keyboard.press("Home")
    viewer.settle()
    assert visible_rows(viewer) == 1


def test_play_runs_from_the_start_to_the_end_by_the_recorded_clock(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    begun = viewer.page.evaluate("performance.now()")
    viewer.part("play").click()
    viewer.settle()
    viewer.page.wait_for_function("document.querySelector(\".dv [data-part='play-text']\").textContent === '▶ Replay'")
    took = (viewer.page.evaluate("performance.now()") - begun) / 1000
    assert visible_rows(viewer) == LAST + 1
    assert took >= ROUNDS[-1]["at"] - ROUNDS[0]["at"]  # never faster than it was; a loaded machine may be slower
    assert viewer.part("live").is_hidden()


def test_pause_holds_and_play_goes_on_from_there(viewer: Viewer) -> None:
    """Three rounds come at once and the fourth after a quarter of an hour, so nothing here is a matter of speed."""
    clock = [0.4, 0.45, 0.5, 0.55] + [1000.0 * number for number in range(1, LAST)]
    viewer.send(finished([{**item, "at": at} for item, at in zip(ROUNDS, clock, strict=False)]))
    viewer.part("play").click()
    viewer.page.wait_for_function("document.querySelectorAll('.dv .rows-box .row:not([hidden])').length === 4")
    assert viewer.part("play-text").inner_text() == "❚❚ Pause"
    viewer.part("play").click()
    viewer.settle()
    assert viewer.part("play-text").inner_text() == "▶ Replay" and visible_rows(viewer) == 4
    viewer.part("speed").select_option("16")
    viewer.part("play").click()
    viewer.settle()
    assert viewer.part("play-text").inner_text() == "❚❚ Pause" and visible_rows(viewer) == 4
    viewer.part("live").click()
    viewer.settle()
    assert viewer.part("play-text").inner_text() == "▶ Replay" and visible_rows(viewer) == LAST + 1


def test_a_paused_view_goes_on_receiving(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=8))
    seek(viewer, 3)
    viewer.send(message(ROUNDS, count=12))
    assert visible_rows(viewer) == 4
    assert viewer.part("where").inner_text() == "round 3 / 11"
    assert viewer.part("live").inner_text() == "Follow live"
    viewer.part("live").click()
    viewer.settle()
    assert visible_rows(viewer) == 12
    viewer.send(message(ROUNDS, count=13))
    assert visible_rows(viewer) == 13


def test_race_and_rate_are_those_of_the_moment(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    width = "name => document.querySelector(`.dv [data-part='${name}']`).style.transform"
    assert viewer.page.evaluate(width, "race-drafted") == "scaleX(1)"
    seek(viewer, 4)
    written = sum(len(item["tokens"]) for item in ROUNDS[:5])
    share = written / sum(len(item["tokens"]) for item in ROUNDS)
    assert viewer.page.evaluate(width, "race-drafted") == f"scaleX({share:.4f})".replace("0)", ")")
    assert viewer.tile("rate") == f"{written / ROUNDS[4]['at']:.1f}"


def test_the_strip_of_rounds_can_be_pointed_at(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    box = viewer.part("strip").bounding_box()
    viewer.page.mouse.click(box["x"] + box["width"] * 5.5 / (LAST + 1), box["y"] + 10)
    viewer.settle()
    assert visible_rows(viewer) == 6


def test_a_run_without_a_clock_can_be_played(viewer: Viewer) -> None:
    viewer.send(finished([{**item, "at": 0} for item in ROUNDS[:6]], plain_run=None))
    viewer.part("speed").select_option("16")
    viewer.part("play").click()
    viewer.page.wait_for_function("document.querySelectorAll('.dv .rows-box .row:not([hidden])').length === 6")
    assert viewer.tile("speedup") == "–"
