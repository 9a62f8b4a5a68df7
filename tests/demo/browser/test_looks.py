"""Both themes at three widths: pictures to look at, nothing wider than the window, contrast, focus, stillness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.demo.browser.conftest import Viewer
from tests.demo.browser.messages import finished, message, story

ROUNDS = story()
WIDTHS = (420, 1280, 1600)
QUICK = {(420, "dark"), (1280, "light")}
WHY = "No speed-up here: on this CPU a target pass over 8 tokens takes 3.9 times as long as one over a single token."
CONTRASTS = """() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgb = (colour, under) => {
        canvas.clearRect(0, 0, 1, 1);
        if (under) { canvas.fillStyle = `rgb(${under})`; canvas.fillRect(0, 0, 1, 1); }
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => [r, g, b].map(v => linear(v / 255))
        .reduce((sum, v, index) => sum + v * [.2126, .7152, .0722][index], 0);
    const ground = node => {
        const chain = [];
        for (let at = node; at; at = at.parentElement) chain.unshift(getComputedStyle(at).backgroundColor);
        return chain.reduce((under, colour) => rgb(colour, under.slice(0, 3)), [255, 255, 255]);
    };
    const seen = {};
    for (const node of document.querySelectorAll('.dv *')) {
        const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
        const drawn = node.matches('.rej, .count');
        const apart = node.closest('.unseen, :disabled, .off, .rej, option') && !drawn;
        if (!(own || drawn) || !node.checkVisibility() || apart) continue;
        if (node.closest('svg') || node.matches('.tick.off *')) continue;
        const under = ground(node);
        const ink = rgb(getComputedStyle(node).color, under.slice(0, 3));
        const [a, b] = [light(ink), light(under)].sort((x, y) => y - x);
        const ratio = (a + .05) / (b + .05);
        const name = node.tagName.toLowerCase() + '.' + node.className + '#' + (node.dataset.part || '');
        seen[name] = Math.min(seen[name] ?? 99, Math.round(ratio * 100) / 100);
    }
    return seen;
}"""


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        pytest.param(width, theme, marks=() if (width, theme) in QUICK else pytest.mark.slow)
        for width in WIDTHS
        for theme in ("light", "dark")
    ],
)
def test_pages_fit_their_window(open_page: Callable[..., Viewer], screenshots: Path, theme: str, width: int) -> None:
    viewer = open_page(width, theme)

    def keep(name: str) -> None:
        viewer.page.wait_for_timeout(220)  # bars glide
        viewer.page.screenshot(path=screenshots / f"{name}-{theme}-{width}.png", full_page=True)
        assert viewer.page.evaluate("document.documentElement.scrollWidth") <= width, name

    keep("1-empty")
    viewer.send(message(ROUNDS, count=9, whole=True))
    keep("2-streaming")
    viewer.send(finished(ROUNDS, why=WHY, verdict={"kind": "near_tie", "text": "differs", "token": 12, "gap": 0.01}))
    viewer.part("rows-box").evaluate("box => { box.scrollTop = 0; }")
    viewer.page.locator(".rows-box .tok[data-r='3'][data-i='0']").hover()
    keep("3-rows-card")
    viewer.part("view-text").check(force=True)
    keep("4-text")
    viewer.part("show-rejected").check()
    viewer.part("shade").check()
    viewer.part("slider").evaluate("s => { s.value = 12; s.dispatchEvent(new Event('input', {bubbles: true})); }")
    keep("5-text-rejected-shaded-replay")
    viewer.send(
        message([], run="bad", phase="failed", notice={"kind": "error", "text": "The pair does not fit: " + WHY})
    )
    keep("6-failed")
    assert viewer.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("shade", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_text_has_a_contrast_of_four_and_a_half(
    open_page: Callable[..., Viewer], theme: str, shade: bool
) -> None:
    viewer = open_page(1280, theme)
    empty = viewer.page.evaluate(CONTRASTS)
    viewer.send(finished(ROUNDS, why=WHY, notice={"kind": "warning", "text": "Careful"}))
    viewer.part("shade").set_checked(shade)
    viewer.page.locator(".rows-box .tok[data-r='18'][data-i='0']").hover()
    viewer.page.wait_for_timeout(400)
    rows = viewer.page.evaluate(CONTRASTS)
    viewer.part("view-text").check(force=True)
    viewer.part("show-rejected").check()
    viewer.page.wait_for_timeout(400)
    text = viewer.page.evaluate(CONTRASTS)
    assert len(rows) > 30
    low = {name: ratio for seen in (empty, rows, text) for name, ratio in seen.items() if ratio < 4.5}
    assert low == {}


def test_theme_is_gradios(open_page: Callable[..., Viewer]) -> None:
    viewer = open_page(1280, "light")
    paper = "getComputedStyle(document.querySelector('.dv .paper')).backgroundColor"
    before = viewer.page.evaluate(paper)
    viewer.page.evaluate("document.body.classList.toggle('dark')")
    assert viewer.page.evaluate(paper) != before


def test_focus_is_seen_on_every_control(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    viewer.part("back").click()
    viewer.settle()
    viewer.part("view-rows").focus()
    seen = []
    for _ in range(16):
        ring = viewer.page.evaluate("""() => {
            const active = document.activeElement;
            const node = active.matches('.switch input') ? active.nextElementSibling : active;
            const style = getComputedStyle(node);
            return [active.dataset.part, active.matches(':focus-visible') && style.outlineStyle !== 'none'];
        }""")
        if ring[0] is None:
            break
        seen.append(ring)
        viewer.page.keyboard.press("Tab")
    assert [name for name, _ in seen] == ["view-rows", "show-rejected", "shade", "copy", "rows-box", "slider", "back",
                                          "play", "forward", "speed", "live"]  # fmt: skip
    assert all(ring for name, ring in seen if name != "view-rows")


def test_reduced_motion_stands_still(open_page: Callable[..., Viewer]) -> None:
    viewer = open_page(reduced_motion="reduce")
    viewer.send(finished(ROUNDS))
    moving = viewer.page.evaluate(
        "[...document.querySelectorAll('.dv *')]"
        ".filter(node => parseFloat(getComputedStyle(node).transitionDuration) > 0).length"
    )
    assert moving == 0


def test_bars_can_be_read_aloud(viewer: Viewer) -> None:
    viewer.send(finished(ROUNDS))
    said = viewer.part("histogram").locator("li .unseen").all_text_contents()
    assert said[0] == "0 accepted: 1 round (5 %)" and len(said) == 8
    positions = viewer.part("positions").locator("li .unseen").all_text_contents()
    assert positions[0].startswith("position 1: accepted in 95 % of the 19 rounds that got there")
    assert len(positions) == 7
