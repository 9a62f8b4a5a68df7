"""What a visitor may ask for; each refusal names the value and what may be."""

from __future__ import annotations

import pytest

from dflash_demo.settings import Limits, Request
from dflash_hf import OptionsError


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prompt": " \n"}, "Type a prompt"),
        ({"prompt": "x" * 20_001}, "20,001 characters; this page takes 20,000"),
        ({"max_new_tokens": 0}, "Maximum tokens is between 1 and 1,024, not 0"),
        ({"max_new_tokens": 4096}, "not 4096"),
        ({"max_new_tokens": None}, "not None"),
        ({"max_new_tokens": 12.5}, "Maximum tokens is a whole number, not 12.5"),
        ({"seed": 1.5}, "Seed is a whole number"),
        ({"prompt": ["Hello"]}, "Type a prompt"),
        ({"temperature": -1}, "Temperature"),
        ({"temperature": float("nan")}, "Temperature"),
        ({"top_p": 0}, "Top-p"),
        ({"seed": -1}, "Seed"),
        ({"draft_cap": -1}, "Draft cap"),
        ({"dtype": "int4"}, "'int4'"),
    ],
)
def test_what_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        Request(**{"prompt": "Hello", **values}).checked(Limits())  # type: ignore[arg-type]


def test_a_good_request_is_itself() -> None:
    asked = Request("Hello", 12, 0.5, 0.9, 3, draft_cap=0, thinking=False)
    assert asked.checked(Limits()) is asked
    assert (asked.sampling.max_new_tokens, asked.sampling.greedy) == (12, False)
