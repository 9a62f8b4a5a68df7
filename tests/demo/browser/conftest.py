"""A real Gradio page with the run view and nothing else, driven in a headless Chromium by scripted messages.

Skips, with the reason, where playwright or a chromium is missing. Screenshots go to ``DFLASH_SCREENSHOTS``, or to a
temporary folder.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PAGE_HEIGHT = 1100
PATIENCE_MS = 120_000  # a machine that trains beside the tests is slow; nothing waits longer than it must


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need: pip install playwright")
    pytest.importorskip("gradio", reason="browser tests need: pip install gradio")
    if CHROMIUM is None:
        pytest.skip("browser tests need a chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def page_address(chromium: Any) -> Iterator[str]:
    from dflash_demo.theme import launch_style
    from tests.demo.browser.page import scripted_page

    blocks = scripted_page()
    _, address, _ = blocks.launch(
        prevent_thread_lock=True, quiet=True, run_history=False, show_error=True, **launch_style()
    )
    yield address
    blocks.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    folder = Path(os.environ.get("DFLASH_SCREENSHOTS") or tempfile.mkdtemp(prefix="dflash-screens-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Viewer:
    """One visitor's page. ``send`` puts a message where the server's would arrive, through Gradio's own value."""

    def __init__(self, page: Any, address: str, theme: str) -> None:
        self.page, self.sent = page, 0
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda line: line.type in ("error", "warning") and self.complaints.append(line.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append("dialog: " + dialog.message), dialog.dismiss()))
        page.goto(f"{address}?__theme={theme}")
        page.wait_for_selector(".dv [data-part='empty']")
        page.wait_for_selector("#feed")

    def reset(self) -> None:
        """The page as it opens: no run, rows in front, every switch where it was."""
        self.complaints.clear()
        self.page.mouse.move(0, 0)
        self.send({"run": None, "rounds": []})
        for view, rejected in (("text", False), ("rows", True)):
            self.part("view-" + view).check(force=True)
            self.part("show-rejected").set_checked(rejected)
        self.page.evaluate("document.querySelector('.dv').classList.remove('shaded')")
        self.page.evaluate("document.querySelector(\".dv [data-part='shade']\").checked = false")
        self.part("speed").select_option("1")
        self.page.evaluate("document.activeElement.blur(); getSelection().removeAllRanges(); scrollTo(0, 0);")
        self.settle()

    def part(self, name: str) -> Any:
        return self.page.locator(f".dv [data-part='{name}']")

    def send(self, message: dict[str, Any] | None) -> None:
        text = None if message is None else json.dumps(message)
        self.sent += 1
        self.page.evaluate(
            "([text, number]) => { window.nextMessage = text; window.nextNumber = number;"
            " document.querySelector('#feed').click(); }",
            [text, self.sent],
        )
        self.page.wait_for_function(f"window.delivered === {self.sent}")
        self.settle()

    def settle(self) -> None:
        """Waits for the frames that draw what has just happened."""
        self.page.evaluate(
            """() => new Promise(done => setTimeout(
                () => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))), 0))"""
        )

    def text(self) -> str:
        return self.page.evaluate("document.querySelector(\".dv [data-part='text']\").textContent")

    def tile(self, name: str) -> str:
        return self.part("tile-" + name).inner_text()

    def tokens(self, view: str = "rows") -> Any:
        return self.page.locator(f".dv [data-part='{view}'] .tok")


@pytest.fixture
def open_page(chromium: Any, page_address: str) -> Iterator[Callable[..., Viewer]]:
    contexts = []

    def opened(width: int = 1280, theme: str = "light", **settings: Any) -> Viewer:
        context = chromium.new_context(viewport={"width": width, "height": PAGE_HEIGHT}, **settings)
        contexts.append(context)
        return Viewer(context.new_page(), page_address, theme)

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def shared_viewer(chromium: Any, page_address: str) -> Iterator[Viewer]:
    context = chromium.new_context(viewport={"width": 1280, "height": PAGE_HEIGHT})
    yield Viewer(context.new_page(), page_address, "light")
    context.close()


@pytest.fixture
def viewer(shared_viewer: Viewer) -> Iterator[Viewer]:
    """A page at 1280 px in the light theme, as when it opens; a console error or a dialog fails the test.

    Opening a page takes seconds, so tests share one and it is set back before each.
    """
    shared_viewer.reset()
    yield shared_viewer
    assert shared_viewer.complaints == []
