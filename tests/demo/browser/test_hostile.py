"""Text from models and visitors is text: nothing in it is run, read as a template or as markup, in any field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.demo.browser.conftest import Viewer
from tests.demo.browser.messages import draft_round, finished, first_round

TEXTS = {
    "template literal": "${40+2}${alert(1)}`${window.harmed=1}`",
    "handlebars": "{{value}}{{{value}}}{{#each value}}x{{/each}}",
    "markup": '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>',
    "svg": "<svg onload=window.harmed=1></svg></div></section><b>bold</b>",
    "backslashes": "\\u003cimg\\u003e \\n \\ \\\\ \\`",
    "right to left": "safe\u202egnp.exe\u202c שלום",
    "zero width": "a\u200bb\u200dc\ufeffd",
    "emoji": "👩‍👩‍👧🏽🇨🇭 🧑‍🚀",
    "children": "@children",
    "quotes": "\"'></style><style>*{display:none}</style>",
    "control": "\x00\x07\x1b[31m",
}


def run_with(text: str) -> dict[str, Any]:
    rounds = [first_round(text), draft_round(1, [text, " b"], text, [text, text], 0.5)]
    return finished(
        rounds,
        run=text,
        prompt=text,
        notice={"kind": "warning", "text": text},
        pair={"target": text, "drafter": text, "dtype": text, "device": text},
        verdict={"kind": "identical", "text": text, "token": None, "gap": None},
        why=text,
    )


@pytest.mark.parametrize("name", TEXTS)
def test_hostile_text_is_shown_as_it_is(viewer: Viewer, name: str) -> None:
    text = TEXTS[name]
    viewer.send(run_with(text))
    viewer.page.locator(".dv .rows-box .tok").nth(1).hover()
    for part in ("prompt", "notice-text", "verdict-text", "why"):
        assert viewer.part(part).text_content() == text, part
    assert viewer.page.locator(".dv .rows-box .tok").first.text_content() == text
    viewer.part("view-text").check(force=True)
    viewer.part("show-rejected").check()
    viewer.settle()
    assert viewer.text() == text + text + " b" + text
    assert viewer.page.evaluate("window.harmed") is None
    assert viewer.page.locator(".dv img, .dv script, .dv svg:not(.strip), .dv style").count() == 0


def test_a_megabyte_of_notice_is_cut_and_says_so(viewer: Viewer) -> None:
    viewer.send(finished([first_round("x")], notice={"kind": "error", "text": "<b>" + "z" * 2**20}))
    said = viewer.part("notice-text").text_content()
    assert said.startswith("<b>zzz") and said.endswith("(1,046,579 more characters)")
    assert viewer.part("notice").bounding_box()["height"] < 200


@pytest.mark.slow
def test_a_megabyte_in_one_token_stays_text(viewer: Viewer) -> None:
    viewer.part("view-text").check(force=True)
    long = "<i>" + "word " * 200_000
    viewer.send(finished([first_round(long)]))
    assert len(viewer.text()) == len(long)
    viewer.part("text-box").focus()
    viewer.page.keyboard.press("ArrowRight")
    assert len(viewer.part("card").text_content()) < 1000


@pytest.mark.parametrize("field", ["notice", "why", "verdict", "pair", "plain_run"])
def test_fields_that_are_missing_leave_the_page_whole(viewer: Viewer, field: str) -> None:
    sent = run_with("x")
    sent.pop(field)
    viewer.send(sent)
    assert viewer.part("rows").locator(".row").count() == 2
