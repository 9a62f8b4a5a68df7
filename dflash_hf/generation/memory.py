"""Drafter contexts kept between turns: what the drafter knows of a cache that its user holds on to.

A drafter only knows tokens whose hidden states it was shown, and the tokens of a cache are not run again. So the pair
remembers, for each cache that left a call, the contexts that belong to it; they live as long as the cache does. A
cache that was changed meanwhile is recognised by its keys: what was added later is unknown to the drafter, what was
cropped or overwritten is forgotten.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_hf.drafter.context import GrowingContext
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.target.state import cached_length

__all__ = ["ContextMemory", "Turn"]


@dataclass(frozen=True, slots=True)
class _Held:
    drafter: weakref.ref[DFlashDrafter]
    contexts: list[GrowingContext]  # one a row
    kind: tuple[torch.dtype, torch.device]  # the drafter's, in which the contexts are
    length: int  # tokens the cache held
    keyprint: Tensor | None  # [B, T] one number a token, that changes with everything up to it


class ContextMemory:
    """The contexts of one pair's conversations, by cache."""

    def __init__(self) -> None:
        self._held: weakref.WeakKeyDictionary[Any, _Held] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._held)

    def recall(self, cache: Any, drafter: DFlashDrafter, rows: int) -> list[GrowingContext]:
        """Contexts for the rows of ``cache``, given away: as far as they are known and still true, else empty."""
        held = self._held.pop(cache, None)
        known = held is not None and held.drafter() is drafter and held.kind == _kind_of(drafter)
        if held is None or not known or len(held.contexts) != rows:
            return [drafter.new_context() for _ in range(rows)]
        for context in held.contexts:
            context.crop(held.length - _still_true(held, cache))
        return held.contexts

    def keep(self, cache: Any, drafter: DFlashDrafter, contexts: Sequence[GrowingContext]) -> None:
        """Remember ``contexts`` for as long as ``cache`` lives."""
        length = cached_length(cache)
        if length is None:
            return  # what the contexts belong to could not be told later
        self._held[cache] = _Held(
            weakref.ref(drafter), list(contexts), _kind_of(drafter), length, _keyprint(cache, length)
        )

    def __deepcopy__(self, _memo: dict[int, Any]) -> ContextMemory:
        return ContextMemory()  # a copy of a pair has copies of no caches

    def __reduce__(self) -> tuple[Any, ...]:
        return (ContextMemory, ())


class Turn:
    """The contexts of one call: taken from a memory at its start, given back at its end.

    Args:
        memory: None for a call whose cache nobody keeps.
        cache: the call's cache, of all rows.
        drafter, rows: what contexts are needed for.
        window: this call's ``DFlashOptions.draft_window``; an earlier turn's does not bind it.
    """

    def __init__(
        self,
        memory: ContextMemory | None,
        cache: Any,
        drafter: DFlashDrafter,
        rows: int,
        window: int | None = None,
    ) -> None:
        self._memory, self._drafter = memory, drafter
        source = memory if memory is not None else ContextMemory()
        self.contexts = source.recall(cache, drafter, rows)
        for context in self.contexts:
            context.limit(window)

    def end(self, finished: bool, cache: Any) -> None:
        """Give the contexts back, for ``cache``: a target may have gone on with another than it was given.

        Of an unfinished call of several rows nothing reached the cache, and its contexts are forgotten.
        """
        if self._memory is None or (not finished and len(self.contexts) > 1):
            return
        for context in self.contexts:
            context.settle()
        self._memory.keep(cache, self._drafter, self.contexts)


def _kind_of(drafter: DFlashDrafter) -> tuple[torch.dtype, torch.device]:
    return drafter.dtype, drafter.device


def _still_true(held: _Held, cache: Any) -> int:
    """How many of the tokens that ``cache`` held are still its first ones."""
    length = min(cached_length(cache) or 0, held.length)
    now = _keyprint(cache, length)
    if held.keyprint is None or now is None:
        return length
    if now.shape[0] != held.keyprint.shape[0]:
        return 0
    same = (now == held.keyprint[:, :length].to(now.device)).all(dim=0)
    return int(same.cumprod(dim=0).sum())


def _keyprint(cache: Any, length: int) -> Tensor | None:
    """A number of each token's key in the last layer that holds all of them; None where every layer has a window."""
    for layer in reversed(cache.layers):
        keys = getattr(layer, "keys", None)
        if (
            keys is not None
            and not getattr(layer, "is_sliding", False)
            and keys.dim() == 4
            and keys.shape[-2] >= length
        ):
            return torch.clone(keys[:, 0, :length, 0])
    return None
