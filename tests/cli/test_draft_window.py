"""``--draft-window`` reaches the drafter in every command that drafts, and is refused where it is no window."""

from __future__ import annotations

import json

import pytest

from dflash_hf.drafter.context import GrowingContext

SHORT = ("--raw", "--max-new-tokens", "3")


@pytest.mark.parametrize("window", [7, None])
@pytest.mark.parametrize("name", ["generate", "verify", "bench"])
def test_every_command_that_drafts_takes_a_window(run, files, tmp_path, monkeypatch, name, window) -> None:
    prompts, limits, limit = tmp_path / "prompts.jsonl", [], GrowingContext.limit
    prompts.write_text(json.dumps({"prompt": "hello o"}) + "\n")
    monkeypatch.setattr(GrowingContext, "limit", lambda self, given: (limits.append(given), limit(self, given)))
    said = [] if window is None else ["--draft-window", window]
    result = run(name, prompts if name == "bench" else "hello o", *SHORT, *said, "--json", *files.options)
    assert result.exit_code == 0, result.stderr
    # `generate` warms up with calls of its own, whose window does not matter.
    assert limits[-1] == window
    if name == "bench":
        assert json.loads(result.stdout)["settings"]["draft_window"] == window


def test_a_window_of_nothing_is_a_usage_error(run, files) -> None:
    result = run("generate", "hello o", "--draft-window", "0", *files.options)
    assert result.exit_code == 2 and "--draft-window" in result.stderr
