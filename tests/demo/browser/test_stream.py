"""Messages arrive: text is only ever added to, lost updates are repaired, another run starts afresh."""

from __future__ import annotations

from typing import Any

from dflash_demo.story import Clock
from dflash_demo.why import why_no_gain
from dflash_hf import RoundRecord, Trace
from tests.demo.browser.conftest import Viewer
from tests.demo.browser.messages import draft_round, finished, long_rounds, message, story, text_of
from tests.demo.browser.page import recorded_page

ROUNDS = story()


def reason(accepted: list[int], *, first_token: float = 0.1, seconds: float = 999.0, **parts: float) -> str:
    """The server's own word on rounds of 1286 ms, beside plain steps of 92.5 ms."""
    rounds = [RoundRecord([1] * 15, kept, 2, round_ms=1286, **parts) for kept in accepted]
    plain = Clock(1001, 92.6, 0.1, done=True)
    said = why_no_gain(Trace(first_token=0, rounds=rounds, device="cpu"), Clock(100, seconds, first_token), plain)
    assert said is not None
    return said


REASONS = [
    reason([0] * 51 + [15] * 49),
    reason([9] * 10, target_ms=1250),
    reason([9] * 10, head_ms=1250),
    reason([9] * 10, replay_ms=1250),
    reason([15] * 10, first_token=654.32),
    reason([15] * 10),
]
FAR_APART = {"kind": "near_tie", "token": 1117, "gap": 0.000488, "text": "differs at token 1117"}


def test_before_any_run_the_page_explains_itself(viewer: Viewer) -> None:
    assert "drafter proposes" in viewer.part("empty").inner_text()
    assert viewer.tile("speedup") == viewer.tile("tau") == "–"
    assert viewer.part("play").is_disabled() and viewer.part("slider").is_disabled()


def test_spans_are_appended_and_earlier_ones_stay_the_same_nodes(viewer: Viewer) -> None:
    viewer.part("view-text").check(force=True)
    viewer.send(message(ROUNDS, count=5))
    viewer.page.evaluate("window.kept = [...document.querySelectorAll('.dv .text .tok')]")
    for count in (6, 7, 12):
        viewer.send(message(ROUNDS, count=count))
    assert viewer.page.evaluate("""() => {
        const now = [...document.querySelectorAll('.dv .text .tok')];
        return window.kept.length > 10 && window.kept.every((node, index) => node === now[index] && node.isConnected);
    }""")
    assert viewer.text() == text_of(ROUNDS[:12])
    assert viewer.part("empty").is_hidden()


def test_a_repeated_round_is_shown_once(viewer: Viewer) -> None:
    for count in (4, 4, 5, 4, 6):
        viewer.send(message(ROUNDS, count=count))
    assert viewer.part("rows").locator("li").count() == 6


def test_updates_lost_within_the_window_do_no_harm(viewer: Viewer) -> None:
    for count in (3, 9, 16):
        viewer.send(message(ROUNDS, count=count))
    assert viewer.part("rows").locator(".row").count() == 16
    assert viewer.part("where").inner_text() == "round 15 / 15"


def test_a_gap_waits_and_the_last_message_fills_it(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=4))
    viewer.send(message(ROUNDS, count=18))  # rounds 4 to 9 never came
    assert viewer.part("rows").locator(".row").count() == 4
    viewer.send(finished(ROUNDS))
    viewer.part("view-text").check(force=True)
    viewer.settle()
    assert viewer.text() == text_of(ROUNDS)


def test_a_new_run_clears_the_page(viewer: Viewer) -> None:
    viewer.send(
        finished(ROUNDS, verdict={"kind": "differs", "text": "differs", "token": 12, "gap": 0.01}, why="because")
    )
    viewer.part("back").click()
    viewer.send(message([], run="other", phase="waiting", prompt="Another prompt"))
    assert viewer.part("rows").locator("li").count() == 0
    assert viewer.part("phase").inner_text() == "Waiting"
    assert viewer.part("prompt").inner_text() == "Another prompt"
    assert viewer.tile("tau") == "–" and viewer.part("why").inner_text() == ""
    assert viewer.part("live").is_hidden() and viewer.part("card").is_hidden()
    viewer.send(message(long_rounds(30), run="other"))
    assert viewer.part("rows").locator("li").count() == 0  # its first rounds have not come yet
    viewer.send(message(long_rounds(30), run="other", whole=True))
    assert viewer.part("rows").locator("li").count() == len(long_rounds(30))


def test_the_last_words_of_a_run_that_was_replaced_are_not_shown(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=5))
    viewer.send(message([], run="other", phase="waiting", prompt="Another prompt"))
    viewer.send(message(ROUNDS, count=6))
    assert viewer.part("phase").inner_text() == "Waiting"
    assert viewer.part("prompt").inner_text() == "Another prompt"
    viewer.send(message(ROUNDS[:2], run="other"))
    assert viewer.part("rows").locator(".row").count() == 2


def test_a_pair_that_is_not_known_yet_has_no_line(viewer: Viewer) -> None:
    nobody = {"target": "", "drafter": "", "dtype": "", "device": ""}
    viewer.send(message([], phase="waiting", pair=nobody))
    assert viewer.part("pair").inner_text() == ""


def test_null_brings_the_empty_page_back(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    viewer.send(message([], run=None))
    assert viewer.part("empty").is_visible() and viewer.part("phase").inner_text() == "Ready"
    viewer.send(None)
    assert viewer.part("empty").is_visible()


def test_figures_of_a_finished_run_are_on_the_page(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    rounds = [item for item in ROUNDS[1:] if item["drafted"]]
    committed = sum(len(item["tokens"]) for item in rounds)
    accepted, drafted = sum(item["accepted"] for item in rounds), sum(item["drafted"] for item in rounds)
    assert viewer.tile("tau") == f"{committed / len(rounds):.2f}"
    assert viewer.tile("acceptance") == f"{round(100 * accepted / drafted)} %"
    assert viewer.tile("speedup") == "1.90×"
    assert viewer.tile("first") == "410 ms"
    assert viewer.tile("rate") == f"{len([1 for item in ROUNDS for _ in item['tokens']]) / ROUNDS[-1]['at']:.1f}"
    assert viewer.part("verdict").inner_text().split("\n")[-1] == "identical text"
    assert viewer.part("summary").text_content().startswith(f"Done: {committed + 1} tokens in {len(rounds)} rounds")


def test_no_speed_up_is_said_with_its_reason(viewer: Viewer) -> None:
    slow = {"tokens": 40, "seconds": 0.5, "done": True, "first_token": 0.1}
    viewer.send(finished(ROUNDS, plain_run=slow, why="On this CPU a pass over 8 tokens costs 3.9 passes over one."))
    assert float(viewer.tile("speedup").rstrip("×")) < 1
    assert viewer.part("why").inner_text().startswith("On this CPU")
    assert "slower" in viewer.page.locator(".tile.lead").get_attribute("class")


def test_summary_is_spoken_once_and_only_at_the_end(viewer: Viewer) -> None:
    viewer.send(message(ROUNDS, count=9))
    assert viewer.part("summary").text_content() == ""
    viewer.send(message(ROUNDS, phase="stopped", whole=True))
    said = viewer.part("summary").text_content()
    assert said.startswith("Stopped: ")
    viewer.part("back").click()
    viewer.settle()
    assert viewer.part("summary").text_content() == said


def test_text_follows_its_end_only_while_the_reader_is_there(viewer: Viewer) -> None:
    rounds = long_rounds(400)
    viewer.send(message(rounds, count=80, whole=True))
    box = viewer.part("rows-box")
    at_end = "box => box.scrollHeight - box.clientHeight - box.scrollTop"
    assert box.evaluate(at_end) < 4
    box.evaluate("box => { box.scrollTop = 40; }")
    viewer.settle()
    viewer.send(message(rounds, count=84))
    assert box.evaluate("box => box.scrollTop") == 40
    box.evaluate("box => { box.scrollTop = box.scrollHeight; }")
    viewer.settle()
    viewer.send(message(rounds, count=90))
    assert box.evaluate(at_end) < 4


def test_readers_find_their_place_when_a_view_comes_back(viewer: Viewer) -> None:
    viewer.send(message(long_rounds(300), whole=True))
    viewer.part("rows-box").evaluate("box => { box.scrollTop = 200; }")
    viewer.settle()
    viewer.part("view-text").check(force=True)
    viewer.settle()
    assert viewer.part("text-box").evaluate("box => box.scrollHeight - box.clientHeight - box.scrollTop") < 4
    viewer.part("view-rows").check(force=True)
    viewer.settle()
    assert viewer.part("rows-box").evaluate("box => box.scrollTop") == 200


def test_nothing_moves_while_a_run_goes_on(viewer: Viewer) -> None:
    places = """() => ['paper', 'side', 'tiles', 'replay', 'race', 'split-key'].map(name => {
        const box = document.querySelector('.dv .' + name).getBoundingClientRect();
        return [name, box.top, box.left, box.width, box.height];
    })"""
    before = viewer.page.evaluate(places)
    plain = {"tokens": 10, "seconds": 0.6, "done": False, "first_token": 0.4}
    for sent in (
        message([], phase="waiting", notice={"kind": "info", "text": "The pair is being loaded ..."}),
        message([], phase="prefill"),
        message(ROUNDS, count=1),
        message(ROUNDS, count=11),
        message(ROUNDS, phase="plain", plain_run=plain),
        finished(ROUNDS),
        *(finished(ROUNDS, why=why, verdict=FAR_APART) for why in REASONS),
        finished(ROUNDS, why=" ".join(REASONS)),  # a fallback's reason may be any length
    ):
        viewer.send(sent)
        assert viewer.page.evaluate(places) == before, sent["phase"]
        if sent["why"] in REASONS:
            room = viewer.page.locator(".dv .outcome")
            assert room.evaluate("box => box.scrollHeight <= box.clientHeight"), f"it scrolls: {sent['why']}"


def test_a_run_streamed_by_the_server_arrives_whole(viewer: Viewer) -> None:
    viewer.page.locator("#tokens input").fill("90")
    viewer.page.locator("#stream").click()
    viewer.page.wait_for_function("document.querySelectorAll('.dv .rows .row').length > 4")
    assert viewer.part("phase").inner_text() == "Drafting and checking"
    viewer.page.wait_for_selector(".dv[data-phase='done']")
    viewer.part("view-text").check(force=True)
    viewer.settle()
    assert viewer.text() == text_of(long_rounds(90))


def test_views_open_on_their_first_value_and_share_nothing(chromium: Any) -> None:
    blocks = recorded_page()
    _, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True)
    page = chromium.new_page()
    try:
        page.goto(address)
        page.wait_for_selector("#second .dv[data-phase='done']")
        assert page.locator("#first [data-part='rows'] li").count() == len(ROUNDS)
        page.locator("#first [data-part='view-text']").check(force=True)
        page.wait_for_selector("#first [data-part='text-box']:not([hidden])")
        assert page.locator("#first [data-part='text']").text_content() == text_of(ROUNDS)
        assert page.locator("#second [data-part='rows-box']").is_visible()
        assert page.locator("#second [data-part='rows'] li").count() == 3
    finally:
        page.close()
        blocks.close()


def test_rounds_of_any_shape_are_drawn(viewer: Viewer) -> None:
    rounds = [*ROUNDS[:2], draft_round(2, [], None, ["x"], 0.7, cut=True)]
    viewer.send(message(rounds, phase="failed", whole=True))
    assert viewer.part("rows").locator(".row-c").last.inner_text() == "0/1"
