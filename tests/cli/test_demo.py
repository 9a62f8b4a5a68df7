"""``dflash-hf demo``: what is missing is said before anything is loaded."""

from __future__ import annotations

import sys

import pytest


@pytest.mark.parametrize(("missing", "said"), [("gradio", "'dflash-hf[demo]'"), ("mcp.server", "'gradio[mcp]'")])
def test_a_missing_extra_is_named(run, monkeypatch: pytest.MonkeyPatch, missing: str, said: str) -> None:
    if missing != "gradio":
        pytest.importorskip("gradio")
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr("dflash_demo.serve.serve", lambda *arguments, **options: pytest.fail("served"))
    result = run("demo", "--mcp", "--no-open")
    assert result.exit_code == 1 and f"pip install {said}" in result.stderr
