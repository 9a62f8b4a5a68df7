"""800 tokens streamed by a server: all arrive, and what they cost the page is written down (and not judged: the time
belongs to the machine). The figures land beside the screenshots and in the test's output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.demo.browser.conftest import Viewer
from tests.demo.browser.messages import long_rounds, text_of

WATCH = """() => {
    window.longTasks = [];
    window.frames_ = [];
    new PerformanceObserver(list => window.longTasks.push(...list.getEntries().map(entry => entry.duration)))
        .observe({type: 'longtask', buffered: false});
    let before = performance.now();
    const tick = now => { window.frames_.push(now - before); before = now; requestAnimationFrame(tick); };
    requestAnimationFrame(tick);
}"""


@pytest.mark.slow
@pytest.mark.parametrize("view", ["rows", "text"])
def test_800_tokens_stream_smoothly(
    open_page: Callable[..., Viewer], screenshots: Path, capsys: pytest.CaptureFixture[str], view: str
) -> None:
    viewer = open_page()
    viewer.part("view-" + view).check(force=True)
    probe = viewer.page.context.new_cdp_session(viewer.page)
    probe.send("Performance.enable")

    def counters() -> dict[str, float]:
        return {item["name"]: item["value"] for item in probe.send("Performance.getMetrics")["metrics"]}

    viewer.page.evaluate(WATCH)
    before = counters()
    viewer.page.locator("#stream").click()
    viewer.page.wait_for_selector(".dv[data-phase='done']", timeout=300_000)
    after = counters()
    frames, long = viewer.page.evaluate("[window.frames_.sort((a, b) => a - b), window.longTasks]")
    spent = {name: after[name] - before[name] for name in after}
    wall = spent["Timestamp"]
    figures = {
        "view": view,
        "rounds": len(long_rounds(800)),
        "wall_s": round(wall, 2),
        "main_thread_cpu_s": round(spent["ThreadTime"], 2),  # CPU time, whatever else the machine does
        "renderer_cpu_s": round(spent["ProcessTime"], 2),
        "main_thread_share": round(spent["ThreadTime"] / wall, 3),
        "script_s": round(spent["ScriptDuration"], 3),
        "style_s": round(spent["RecalcStyleDuration"], 3),
        "layout_s": round(spent["LayoutDuration"], 3),
        "long_tasks": len(long),
        "longest_ms": round(max(long, default=0)),
        "frame_gap_p95_ms": round(frames[int(len(frames) * 0.95)], 1),
        "nodes": int(after["Nodes"]),
    }
    (screenshots / f"smooth-{view}.json").write_text(json.dumps(figures) + "\n")
    with capsys.disabled():
        sys.stdout.write("\n" + json.dumps(figures) + "\n")
    viewer.page.screenshot(path=screenshots / f"7-800-tokens-{view}.png", full_page=True)
    viewer.part("view-text").check(force=True)
    viewer.settle()
    assert viewer.text() == text_of(long_rounds(800))
    assert viewer.complaints == []
