"""Fixtures of the exactness suite."""

from __future__ import annotations

import pytest

from dflash_hf.drafter.heads import chain, parallel, selector
from dflash_hf.generation import accept
from tests.exact.branches import Branches


@pytest.fixture
def branches(monkeypatch):
    """The draws of drafting and acceptance become branches; everything else stays as it is."""
    tree = Branches()
    monkeypatch.setattr(accept, "draw", tree.draw)
    for module in (parallel, chain, selector):
        monkeypatch.setattr(module, "draw", tree.draw)
    monkeypatch.setattr(accept, "_happens", tree.happens)
    return tree
