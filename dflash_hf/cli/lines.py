"""Plain lines for a terminal or a file: columns that stand under each other, and sizes for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

__all__ = ["megabytes", "table"]

_WIDEST = 48  # of a column that others follow; a longer value pushes its own line only


def table(rows: Sequence[Sequence[Any]]) -> None:
    """Print rows of equal length, indented, columns aligned."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [min(max(map(len, column)), _WIDEST) for column in zip(*cells, strict=True)]
    for row in cells:
        typer.echo("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def megabytes(size: int) -> str:
    """Bytes as MB of 1,000,000, or GB from 10,000 MB on.

    >>> megabytes(1_234_000), megabytes(12_340_000_000)
    ('1.2 MB', '12.3 GB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e10 else f"{size / 1e6:.1f} MB"
