"""One pair at a time is in memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from dflash_demo.pairs import Pairs
from dflash_hf.bench.pair import PairSource


def test_the_old_pair_is_gone_before_another_is_loaded(source: PairSource, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(source)
    old = weakref.ref(pairs.get("float32").model)
    left: list[Any] = []
    load = PairSource.load

    def watched(self: PairSource, say: Any) -> Any:
        left.append(old())
        return load(self, say)

    monkeypatch.setattr(PairSource, "load", watched)
    gc.disable()
    try:
        assert pairs.get("bfloat16").model.dtype == torch.bfloat16
    finally:
        gc.enable()
    assert left == [None]
