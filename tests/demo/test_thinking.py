"""Thinking: when it is on, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from time import monotonic, sleep
from typing import Any

import pytest

from dflash_demo.pairs import Pairs
from dflash_demo.runs import Run
from dflash_demo.settings import Limits, Request
from dflash_demo.thinking import has_thinking, thinking_warning, thinks
from dflash_demo.visitors import Ticket
from dflash_hf.bench.pair import Pair, PairSource
from dflash_hf.pretrained.auto import Choice
from tests.cli.conftest import Files, tiny_tokenizer

NO_THOUGHT = "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
THINKS = "{{ messages[0].content }}" + NO_THOUGHT  # as Qwen3's: unless it is told not to
ASKS = "{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}"
PLAIN = "{{ messages[0].content }}"


def pair(template: str | None, trained: bool | None = None) -> Pair:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    names = {"target": "the target", "drafter": "the drafter"}
    return Pair(None, None, tokenizer, names, trained)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "thinking", "on"),
    [
        (THINKS, None, True),
        (THINKS, True, True),
        (THINKS, False, False),
        (ASKS, None, False),
        (ASKS, True, True),
        (PLAIN, None, False),
        (None, None, False),
    ],
)
def test_thinking_is_on_where_the_prompt_is_that_of_thinking(template: Any, thinking: Any, on: bool) -> None:
    found = pair(template)
    assert has_thinking(found) == (template in (THINKS, ASKS))
    assert thinks(found, "Hello", thinking) is on
    assert (thinking_warning(found, "Hello", thinking) is not None) is on


def test_the_warning_knows_how_the_drafter_was_trained() -> None:
    assert thinking_warning(pair(THINKS, trained=True), "Hello", None) is None
    outright = thinking_warning(pair(THINKS, trained=False), "Hello", None)
    assert outright is not None and "the drafter was trained without thinking" in outright
    unsure = thinking_warning(pair(THINKS), "Hello", None)
    assert unsure is not None and "Unless the drafter was trained on thoughts" in unsure


def test_a_run_with_the_templates_own_choice_is_warned(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs.get("auto").tokenizer, "chat_template", THINKS)
    *_, last = Run(pairs, Ticket(Request("a walk to", 8, plain=False)), Limits()).messages()
    assert last["phase"] == "done" and last["notice"]["kind"] == "warning"
    assert last["notice"]["text"].startswith("Thinking is on.")
    asked = Request("a walk to", 8, plain=False, thinking=False)
    *_, last = Run(pairs, Ticket(asked), Limits()).messages()
    assert last["phase"] == "done" and last["notice"] is None


def test_a_chosen_drafters_training_is_known_and_said_while_it_is_loaded(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copytree(files.drafter, tmp_path / "Qwen3-8B-DFlash-b16")
    choice = Choice(str(folder), False, "a known pair")
    monkeypatch.setattr("dflash_hf.pretrained.auto.choose_drafter", lambda target, **options: choice)
    chosen = Pairs(PairSource(str(files.target), "auto", device_map="cpu", local_files_only=True), warm_up=False)
    said: list[str] = []
    chosen.preload(said.append)
    until = monotonic() + 60
    while chosen.loaded is None and monotonic() < until:
        sleep(0.05)
    assert chosen.loaded is not None and chosen.loaded.thinking is False
    assert "it was trained without thinking mode" in said[0]
    assert said[-1] == "loading target with Qwen3-8B-DFlash-b16"
