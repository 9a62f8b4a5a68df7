"""What a drafter is marked with when its dialect was written from descriptions, without its authors' code at hand."""

from __future__ import annotations

__all__ = ["from_descriptions"]


def from_descriptions(*said_by: str) -> str:
    """The note for ``Provenance.notes``.

    >>> from_descriptions("vLLM", "SGLang")
    'from descriptions only (vLLM, SGLang): nobody compared this dialect with published weights here'
    """
    sources = ", ".join(said_by)
    return f"from descriptions only ({sources}): nobody compared this dialect with published weights here"
