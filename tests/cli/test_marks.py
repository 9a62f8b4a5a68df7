from __future__ import annotations

import io

import pytest

from dflash_hf.cli.marks import Marks, marks_for, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "styled"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "0"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_marks_for_follows_terminal_and_environment(stream, environment, styled) -> None:
    assert marks_for(stream, environment).styled is styled


def test_accepted_closes_its_own_style_and_marks_no_empty_span() -> None:
    styled = Marks(styled=True).accepted("ab")
    assert "\x1b[4m" in styled and styled.endswith("\x1b[0m")  # an underline, not colour alone
    assert Marks(styled=True).accepted("") == Marks(styled=False).accepted("") == ""


def test_printable_lets_no_escape_through() -> None:
    text = "".join(map(chr, range(256)))
    shown = printable(text)
    assert not {chr(code) for code in [*range(9), *range(11, 32), *range(127, 160)]} & set(shown)
    assert "\n" in shown and "\t" in shown and "é" in shown
