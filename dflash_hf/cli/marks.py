"""How accepted spans look in a terminal: underlined and green, or in [brackets] where styles are not wanted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

import typer

__all__ = ["Marks", "marks_for", "printable"]

_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True)
class Marks:
    """``styled`` underlines and colours (the underline alone carries the meaning); otherwise brackets."""

    styled: bool

    def accepted(self, text: str) -> str:
        """Text of drafted tokens that the target kept. Every span closes its own style, so a cut run leaves none."""
        if not text:
            return ""
        core = text.strip() or text  # white space around a word is not marked; alone it is all there is to mark
        before, after = text.split(core, 1)
        shown = printable(core)
        marked = typer.style(shown, fg=typer.colors.GREEN, underline=True) if self.styled else f"[{shown}]"
        return printable(before) + marked + printable(after)

    def own(self, text: str) -> str:
        """Text of the target's own tokens: unmarked."""
        return printable(text)

    @property
    def legend(self) -> str:
        return "underlined: drafted and accepted" if self.styled else "[in brackets]: drafted and accepted"


def marks_for(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Marks:
    """Styles on a terminal, plain marks elsewhere; ``NO_COLOR`` takes them away, ``FORCE_COLOR`` brings them."""
    if environment.get("NO_COLOR"):
        return Marks(styled=False)
    if environment.get("FORCE_COLOR") not in (None, "", "0"):
        return Marks(styled=True)
    return Marks(styled=stream.isatty() and environment.get("TERM") != "dumb")


def printable(text: str) -> str:
    r"""A model's text without control characters: what it writes must not drive the terminal.

    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\n'
    """
    return text.translate(_CONTROLS)
