"""How the target's memory takes a block and goes back.

``CropState`` serves every host cache that can drop its newest tokens, at batch 1: full and sliding attention, shared
layers, MLA. A cache keeps its mode: what ``begin`` switches on, ``end`` switches off.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from transformers import StaticCache

from dflash_hf.errors import UnsupportedTargetError

__all__ = ["CropState", "cannot_crop"]


def cannot_crop(cache: Any) -> str | None:
    """Why this cache cannot go back after a verification, or None if it can."""
    if isinstance(cache, StaticCache):
        return "a static cache; this version drafts with the dynamic cache"
    if not hasattr(cache, "crop") or not hasattr(cache, "layers"):
        return f"a cache of type {type(cache).__name__}, which cannot drop tokens"
    # A short convolution only knows once it holds something; `CropState.begin` asks again.
    stuck = {
        type(layer).__name__ for layer in cache.layers if not (layer.is_croppable or hasattr(layer, "conv_states"))
    }
    return f"cache layers that cannot drop tokens: {', '.join(sorted(stuck))}" if stuck else None


class CropState:
    """A host cache driven by :meth:`take` and :meth:`keep`: of the rows of the last block, so many stay.

    The cache may be the user's own: after :meth:`end` it is in the mode it came in, and a round that was interrupted
    has left nothing behind.
    """

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self._modes: list[tuple[Any, bool]] = []
        self._before: list[Any] | None = None  # how each layer stood when the open round began
        self._taken = 0

    @property
    def length(self) -> int:
        return int(self.cache.get_seq_length())

    def begin(self) -> None:
        """After the prefill: let sliding layers remember enough to go back. Not before, or a prefill is kept whole."""
        self._modes = [(layer, layer.record_past) for layer in self.cache.layers if hasattr(layer, "record_past")]
        self.cache.activate_past_recording()
        if not getattr(self.cache, "is_croppable", True):  # some layers only know once they hold something
            raise UnsupportedTargetError(
                f"the target's cache ({type(self.cache).__name__}) cannot drop tokens after a verification; "
                "call generate without the drafter."
            )

    def take(self, rows: int) -> None:
        """The next forward will append ``rows`` tokens."""
        self._before = [_standing(layer) for layer in self.cache.layers]
        self._taken = rows

    def keep(self, rows: int) -> None:
        """Of the rows last taken, the first ``rows`` stay; the others are dropped."""
        dropped = self._taken - rows
        assert dropped >= 0, "keeping more rows than were taken"
        if dropped:
            self.cache.crop(-dropped)
        elif self._modes:
            self.cache.crop(0)  # drops nothing: lets sliding layers forget what lies behind their window
        self._before = None

    def end(self) -> None:
        """Leave the cache as plain decoding would: its own mode, and no rows of an unfinished round."""
        if self._before is not None:  # the forward was cut short, maybe between two layers
            for layer, before in zip(self.cache.layers, self._before, strict=True):
                _go_back(layer, before)
            self._before = None
        for layer, recorded in self._modes:
            layer.record_past = recorded
        self._modes = []


def _standing(layer: Any) -> int | dict[str, Any]:
    """Enough to go back by: a length, or for layers without one (short convolutions) the tensors they hold."""
    if hasattr(layer, "get_seq_length"):
        return int(layer.get_seq_length())
    return {name: copy(value) if isinstance(value, dict | list) else value for name, value in vars(layer).items()}


def _go_back(layer: Any, before: int | dict[str, Any]) -> None:
    if isinstance(before, dict):
        vars(layer).update(before)
    elif (surplus := layer.get_seq_length() - before) > 0:
        layer.crop(-surplus)
