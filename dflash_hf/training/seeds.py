"""Random numbers that depend on names alone, not on what was drawn before.

A resumed run, and a run split over processes, must draw what one unbroken process would: each draw gets a generator
of its own, seeded by what it is for.
"""

from __future__ import annotations

import hashlib

import torch

__all__ = ["generator_for"]


def generator_for(*names: str | int) -> torch.Generator:
    """A CPU generator seeded by a hash of ``names``, such as a purpose, the run's seed and a step.

    >>> first, again = (torch.rand(2, generator=generator_for("anchors", 0, "doc-7")) for _ in range(2))
    >>> bool((first == again).all())
    True
    """
    digest = hashlib.sha256("\0".join(map(str, names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
