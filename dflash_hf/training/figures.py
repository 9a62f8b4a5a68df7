"""Bytes and seconds as people say them."""

from __future__ import annotations

__all__ = ["size", "spell"]


def size(count: float) -> str:
    """
    >>> size(12_340_000), size(1_940_000_000)
    ('12 MB', '1.94 GB')
    """
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def spell(seconds: float) -> str:
    """
    >>> spell(12.34), spell(300), spell(7500)
    ('12 s', '5 min', '2.1 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
