"""Options that are several numbers in one text."""

from __future__ import annotations

import os

from dflash_hf.errors import OptionsError

__all__ = ["layer_numbers", "shard_numbers"]


def layer_numbers(option: str, text: str) -> list[int]:
    """Layers with commas between them.

    >>> layer_numbers("--layers", "1,8,14")
    [1, 8, 14]
    """
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise OptionsError(f"{option} takes numbers with ',' between them, got {text!r}") from None


def shard_numbers(text: str | None) -> tuple[int, int]:
    """This process's number and how many there are: as given (I/N), else as torchrun says, else the only one."""
    given = text or f"{os.environ.get('RANK', 0)}/{os.environ.get('WORLD_SIZE', 1)}"
    try:
        number, count = map(int, given.split("/"))
    except ValueError:
        number, count = 0, 0
    if not 0 <= number < count:
        raise OptionsError(f"--shard is I/N with I from 0 to N - 1, not {given!r}")
    return number, count
