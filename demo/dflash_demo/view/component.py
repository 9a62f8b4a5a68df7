"""The component that shows a run. In: messages, each one JSON string. Out: nothing; reading happens in the browser.

Three things Gradio does decide how this is built. A template that never mentions the value is never drawn again, so the
script owns the page. Both templates are JavaScript template literals, evaluated again for every value; therefore the
skeleton is small and holds no backslash, backtick or dollar brace, and the style is given once, in the head. A custom
component's nested values are watched deeply, so a message is a string.
"""

from __future__ import annotations

from abc import ABCMeta
from functools import cache
from importlib.resources import files
from typing import Any

from gradio import HTML

__all__ = ["SCRIPTS", "STYLES", "RunView", "script", "skeleton", "style"]

STYLES = ("colours.css", "frame.css", "stage.css", "tokens.css", "side.css", "card.css", "narrow.css")
SCRIPTS = (  # a later file uses earlier ones; main.js wires them
    "numbers.js",
    "state.js",
    "words.js",
    "tokens.js",
    "views.js",
    "text.js",
    "rows.js",
    "facts.js",
    "card.js",
    "walk.js",
    "copying.js",
    "charts.js",
    "replay.js",
    "panel.js",
    "controls.js",
    "main.js",
)


@cache
def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def skeleton() -> str:
    """The static page of the component."""
    return _read("skeleton.html")


def style() -> str:
    """All rules, held inside the component's class."""
    return ".dflash-run {\n" + "\n".join(_read(name) for name in STYLES) + "\n}"


def script() -> str:
    """All scripts as one strict function body."""
    return "(() => {\n'use strict';\n" + "\n".join(_read(name) for name in SCRIPTS) + "\n})();"


class _Unwritten(type(HTML)):  # type: ignore[misc]
    """Gradio's metaclass without its habit of writing a type stub beside every component's source."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        return ABCMeta.__new__(cls, name, bases, body)


class RunView(HTML, metaclass=_Unwritten):
    """Shows a run as it happens: text, rounds, figures, replay. Its value is one message (a JSON string), or None."""

    def __init__(self, value: str | None = None, **settings: Any) -> None:
        """
        Args:
            value: a message to begin with.
            settings: what every Gradio component takes (``elem_id``, ``visible``, ``render`` ...).
        """
        given = settings.pop("elem_classes", None) or []
        classes = [given] if isinstance(given, str) else list(given)
        own = {
            "html_template": skeleton(),
            "css_template": "",
            "js_on_load": script(),
            "head": f"<style>{style()}</style>",
            "apply_default_css": False,
            "elem_classes": ["dflash-run", *(name for name in classes if name != "dflash-run")],
        }
        # Gradio makes a component anew for each visitor from all it has, these among it.
        super().__init__(value, **{**settings, **own})

    def __getattr__(self, name: str) -> Any:
        # Gradio's own takes every quoted word of the script for a custom event; this component has none.
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def preprocess(self, payload: str | None) -> str | None:
        return payload

    def postprocess(self, value: str | None) -> str | None:
        # Not HTML: Gradio's warning about script tags does not apply to text that is shown as text.
        return value

    def api_info(self) -> dict[str, Any]:
        return {"type": "string", "description": "a run so far, as one JSON message"}

    def example_payload(self) -> Any:
        return None

    def example_value(self) -> Any:
        return None
