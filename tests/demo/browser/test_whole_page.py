"""The page as a visitor has it, the tiny pair behind it: ask, watch, stop, load, save, and two visitors at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_demo.pairs import Pairs
from dflash_demo.runs import Run
from dflash_demo.settings import Limits
from dflash_hf import Trace
from tests.demo.conftest import Files, files, pairs, source

__all__ = ["Files", "files", "pairs", "source"]

PERFECT = "a walk to"  # ends in the drafter's mask token, so every draft is kept (tests.cli.conftest)
HOSTILE = "<img src=x onerror=alert(1)> ${40+2} {{value}} \\ ` \u202eabc\u200b \U0001f600 to"


@pytest.fixture(scope="module")
def served(chromium: Any, pairs: Pairs) -> Iterator[Any]:
    from dflash_demo.page import build
    from dflash_demo.serve import launch_options

    blocks = build(pairs, Limits(prompt_tokens=200))
    blocks.launch(prevent_thread_lock=True, **launch_options())
    yield blocks
    blocks.close()


@pytest.fixture(scope="module")
def address(served: Any) -> str:
    return str(served.local_url)


class Visitor:
    """One browser window on the page."""

    def __init__(self, page: Any, address: str, theme: str) -> None:
        self.page, self.complaints = page, []
        page.on("console", lambda line: line.type in ("error", "warning") and self.complaints.append(line.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append("dialog: " + dialog.message), dialog.dismiss()))
        page.set_default_timeout(90_000)  # a busy machine is no fault
        page.goto(f"{address}?__theme={theme}")
        page.wait_for_selector("[data-part='rows'] .tok")  # the recorded run

    def part(self, name: str) -> Any:
        return self.page.locator(f".dv [data-part='{name}']")

    def ask(self, prompt: str, tokens: int = 24) -> None:
        self.page.locator("#prompt textarea").fill(prompt)
        field = self.page.get_by_label("number input for Maximum tokens")
        if not field.is_visible():
            self.page.locator("#settings > button").click()
        field.fill(str(tokens))
        field.press("Enter")
        self.page.wait_for_timeout(300)  # Gradio takes a typed number over when typing has paused
        self.page.locator("#generate").click()
        self.page.wait_for_function(
            "asked => document.querySelector(\".dv [data-part='prompt']\").textContent === asked", arg=prompt
        )

    def wait_for(self, phase: str) -> None:
        self.page.wait_for_selector(f".dv[data-phase='{phase}']")

    def load(self, path: Path) -> None:
        with self.page.expect_file_chooser() as chosen:
            self.page.locator("#upload").click()
        chosen.value.set_files(path)

    def text(self) -> str:
        return str(self.page.evaluate("document.querySelector(\".dv [data-part='text']\").textContent"))

    def saved(self, folder: Path) -> dict[str, Any]:
        with self.page.expect_download() as found:
            self.page.locator("#download").click()
        found.value.save_as(folder / "run.json")
        return dict(json.loads((folder / "run.json").read_text()))


@pytest.fixture
def visit(chromium: Any, address: str) -> Iterator[Callable[..., Visitor]]:
    contexts, visitors = [], []

    def opened(width: int = 1280, theme: str = "light") -> Visitor:
        contexts.append(chromium.new_context(viewport={"width": width, "height": 1000}))
        visitors.append(Visitor(contexts[-1].new_page(), address, theme))
        return visitors[-1]

    yield opened
    complaints = [line for visitor in visitors for line in visitor.complaints]
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds take long enough for a visitor to act between two of them, on any machine."""
    tell, add = Run._tell, Run._add

    def later(self: Run, change: Any, *values: Any) -> None:
        if getattr(change, "__func__", None) is add:
            time.sleep(0.1)
        tell(self, change, *values)

    monkeypatch.setattr(Run, "_tell", later)


def test_a_question_is_answered_and_the_numbers_are_the_traces(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    visitor = visit()
    visitor.ask(PERFECT)
    visitor.wait_for("done")
    body = visitor.saved(tmp_path)
    trace = Trace.from_dict(body["trace"])
    figures = trace.metrics()
    assert visitor.text() == "".join(text for round_ in body["texts"] for text in round_["tokens"])
    assert visitor.part("tile-tau").inner_text() == f"{figures['tau']:.2f}"
    assert visitor.part("tile-acceptance").inner_text() == f"{100 * figures['draft_acceptance_rate']:.0f} %"
    assert visitor.part("rows").locator(".row").count() == 1 + len(trace.rounds)
    assert visitor.part("verdict").get_attribute("data-kind") == "identical"
    rates = [body[run]["tokens"] / body[run]["seconds"] for run in ("drafted_run", "plain_run")]
    assert visitor.part("tile-speedup").inner_text() == f"{rates[0] / rates[1]:.2f}×"


def test_stop_ends_the_run_which_can_be_saved_and_another_can_begin(
    visit: Callable[..., Visitor], slowly: None, tmp_path: Path
) -> None:
    visitor = visit()
    visitor.ask("along the river a", tokens=200)  # nothing is kept: 200 rounds
    visitor.wait_for("drafting")
    visitor.page.locator("#stop").click()
    visitor.wait_for("stopped")
    rows = visitor.part("rows").locator(".row").count()
    assert rows < 190
    assert len(visitor.saved(tmp_path)["trace"]["rounds"]) == rows - 1  # the first row is the prefill
    visitor.ask(PERFECT, tokens=12)
    visitor.wait_for("done")
    assert visitor.part("verdict").get_attribute("data-kind") == "identical"


def test_asking_again_during_a_run_begins_the_next_one(visit: Callable[..., Visitor], slowly: None) -> None:
    visitor = visit()
    visitor.ask("along the river a", tokens=200)
    visitor.wait_for("drafting")
    visitor.ask(PERFECT, tokens=12)
    visitor.wait_for("done")
    assert visitor.part("prompt").inner_text() == PERFECT
    assert visitor.part("verdict").get_attribute("data-kind") == "identical"


@pytest.mark.slow
def test_a_full_queue_is_explained_in_the_page(
    visit: Callable[..., Visitor], served: Any, slowly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = visit(), visit()
    first.ask("along the river a", tokens=60)
    first.wait_for("drafting")
    monkeypatch.setattr(served._queue, "max_size", 0)
    second.ask(PERFECT)
    second.wait_for("failed")
    assert "Too many runs are waiting" in second.part("notice").inner_text()
    assert [line for line in second.complaints if "503" not in line] == []  # the browser's own word for the refusal
    second.complaints.clear()
    first.wait_for("done")


@pytest.mark.slow
def test_a_saved_run_is_loaded_again(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    visitor = visit()
    visitor.ask(PERFECT)
    visitor.wait_for("done")
    visitor.saved(tmp_path)
    text = visitor.text()
    other = visit()
    assert other.text() != text
    other.load(tmp_path / "run.json")
    other.page.wait_for_function(
        "text => document.querySelector(\".dv [data-part='text']\").textContent === text", arg=text
    )
    assert "A recorded run" in other.part("notice").inner_text()


@pytest.mark.slow
def test_a_file_loaded_during_a_run_stays_on_the_page(
    visit: Callable[..., Visitor], slowly: None, tmp_path: Path
) -> None:
    visitor = visit()
    visitor.ask(PERFECT, tokens=16)
    visitor.wait_for("done")
    visitor.saved(tmp_path)
    visitor.ask("along the river a", tokens=200)
    visitor.wait_for("drafting")
    visitor.load(tmp_path / "run.json")
    visitor.page.get_by_text("A recorded run").wait_for()
    visitor.page.wait_for_timeout(1500)  # the stopped run's last words would have come by now
    visitor.wait_for("done")
    assert visitor.part("prompt").inner_text() == PERFECT


def test_a_damaged_file_is_explained_and_changes_nothing(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    visitor = visit()
    before = visitor.text()
    (tmp_path / "bad.json").write_text('{"schema": "else"}')
    visitor.load(tmp_path / "bad.json")
    visitor.page.get_by_text("This is no run this page can show").wait_for()
    assert visitor.text() == before


def test_hostile_text_is_text(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    visitor.ask(HOSTILE)
    visitor.wait_for("done")
    assert visitor.part("prompt").inner_text().startswith("<img src=x onerror=alert(1)> ${40+2} {{value}} \\ `")
    assert visitor.page.locator(".dv img").count() == 0


@pytest.mark.parametrize(("prompt", "said"), [("", "Type a prompt"), ("river " * 300, "this page takes 200")])
def test_a_bad_request_is_explained_in_the_page(visit: Callable[..., Visitor], prompt: str, said: str) -> None:
    visitor = visit()
    visitor.ask(prompt)
    visitor.wait_for("failed")
    assert said in visitor.part("notice").inner_text()


def test_a_long_paste_is_refused_whole_and_not_sent_back(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    visitor.page.locator("#prompt textarea").fill("")
    visitor.page.locator("#prompt textarea").focus()
    visitor.page.keyboard.insert_text("river " * 3_334)
    assert len(visitor.page.locator("#prompt textarea").input_value()) == 20_004
    visitor.page.wait_for_timeout(300)
    visitor.page.locator("#generate").click()
    visitor.wait_for("failed")
    assert visitor.part("notice").inner_text().endswith("The prompt has 20,004 characters; this page takes 20,000.")
    assert visitor.part("prompt").text_content() == ""
    visitor.ask(PERFECT, tokens=8)
    visitor.wait_for("done")


def test_two_visitors_have_their_own_runs(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    first, second = visit(), visit(theme="dark", width=420)
    first.ask("along the river a", tokens=60)
    second.ask(PERFECT, tokens=16)
    second.wait_for("waiting")
    second.wait_for("done")
    first.wait_for("done")
    assert first.text() != second.text()
    assert first.part("prompt").inner_text() == "along the river a"
    assert second.part("prompt").inner_text() == PERFECT


@pytest.mark.slow
def test_stop_while_waiting_takes_only_that_visitor_out(visit: Callable[..., Visitor], slowly: None) -> None:
    first, second = visit(), visit()
    first.ask("along the river a", tokens=150)
    first.wait_for("drafting")
    second.ask(PERFECT, tokens=16)
    second.wait_for("waiting")
    second.page.locator("#stop").click()
    second.wait_for("stopped")
    assert (
        first.page.locator(".dv").get_attribute("data-phase") == "drafting"
    )  # at once, not when the turn would have come
    assert "Stopped before its turn" in second.part("notice").inner_text()
    second.ask(PERFECT, tokens=12)
    first.wait_for("done")
    second.wait_for("done")


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280, 1600])
def test_the_whole_page_at_every_width(
    visit: Callable[..., Visitor], screenshots: Path, theme: str, width: int
) -> None:
    visitor = visit(width, theme)
    visitor.page.screenshot(path=screenshots / f"page-{theme}-{width}.png", full_page=True)
    assert visitor.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_endpoint_answers_programs(address: str) -> None:
    from gradio_client import Client

    answer = Client(address, verbose=False).predict(PERFECT, max_new_tokens=12, api_name="/generate")
    assert answer["verdict"]["kind"] == "identical"
    assert answer["metrics"]["num_spec_steps"] == len([item for item in answer["trace"]["rounds"] if item["drafted"]])
    with pytest.raises(Exception, match="Type a prompt first"):
        Client(address, verbose=False).predict(" ", api_name="/generate")
    assert set(Client(address, verbose=False).view_api(return_format="dict")["named_endpoints"]) == {"/generate"}
