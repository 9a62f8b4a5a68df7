"""How the target's memory takes a block and goes back.

``CropState`` serves every host cache that can drop its newest tokens, at batch 1: full and sliding attention, shared
layers, MLA, static; ``target.replay`` those that cannot. A cache keeps its mode: what ``begin`` switches on, ``end``
switches off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StaticCache

from dflash_hf.errors import UnsupportedTargetError

__all__ = ["CropState", "cached_length", "cannot_crop"]


def cannot_crop(cache: Any) -> str | None:
    """Why this cache cannot go back after a verification, or None if it can."""
    if not hasattr(cache, "crop") or not hasattr(cache, "layers"):
        return f"a cache of type {type(cache).__name__}, which cannot drop tokens"
    static = isinstance(cache, StaticCache)
    stuck = {type(layer).__name__ for layer in cache.layers if not _may_go_back(layer, static)}
    kind = "a static cache" if static else "a cache"
    return f"{kind} with layers that cannot drop tokens ({', '.join(sorted(stuck))})" if stuck else None


def _may_go_back(layer: Any, static: bool) -> bool:
    """Whether this layer can drop tokens, as far as it knows: one with a convolution only does once it holds something.

    ``CropState.begin`` asks those again. In a static cache they are refused, whoever made it (``host.static_cannot``).
    """
    return not static if hasattr(layer, "conv_states") else bool(getattr(layer, "is_croppable", False))


def cached_length(cache: Any) -> int | None:
    """Tokens that a cache holds, or None where all its layers are recurrent: then nobody counted."""
    counts = not cache.layers or any(hasattr(layer, "get_seq_length") for layer in cache.layers)
    return int(cache.get_seq_length()) if counts else None


class CropState:
    """A host cache driven by :meth:`take` and :meth:`keep`: of the rows of the last block, so many stay.

    The cache may be the user's own: after :meth:`end` it is in the mode it came in, and a prefill (``take(0)`` before
    it, :meth:`begin` after it) or a round that was interrupted has left nothing behind.

    Args:
        cache: the cache of one row.
        layer_types: of the target's layers, where its config names them: some share the keys of an earlier layer.
    """

    kind = "crop"

    def __init__(self, cache: Any, layer_types: Sequence[str] | None = None) -> None:
        self.cache, self._layer_types = cache, layer_types
        self.static = isinstance(cache, StaticCache)
        self.length = cached_length(cache) or 0  # committed tokens
        self._modes: list[tuple[Any, bool]] = []
        self._open: list[dict[str, Any]] | None = None  # during a forward: how layers stood before it
        self._taken = 0
        self._reach = 0  # how far a static cache was written

    @property
    def free(self) -> int | None:
        """Rows a cache of fixed size still takes, or None where it grows."""
        return self.cache.get_max_length() - self.length if self.static else None

    def window_of(self, number: int) -> int | None:
        """The window of the target's attention layer ``number``, counted among its layers with attention.

        One that shares the keys of an earlier layer has the window of its own type.
        """
        layers, kinds = self.cache.layers, self._layer_types or ()
        attending = [layer for layer in layers if hasattr(layer, "keys")]
        if number < len(attending) and hasattr(attending[number], "get_seq_length"):
            return _window(attending[number])
        owners = (layer for layer, kind in zip(layers, kinds, strict=False) if kind == kinds[number])
        return next((_window(owner) for owner in owners if hasattr(owner, "get_seq_length")), None)

    def begin(self, seen: int) -> None:
        """After the prefill: let sliding layers remember enough to go back. Not before, or a prefill is kept whole.

        Args:
            seen: tokens read so far, for a cache that does not count them.
        """
        self._open = None
        held = cached_length(self.cache)
        self.length = seen if held is None else held
        self._modes = [(layer, layer.record_past) for layer in self.cache.layers if hasattr(layer, "record_past")]
        self._remember()

    def _remember(self) -> None:
        self.cache.activate_past_recording()
        if not getattr(self.cache, "is_croppable", True):  # some layers only know once they hold something
            raise UnsupportedTargetError(
                f"the target's cache ({type(self.cache).__name__}) cannot drop tokens after a verification; "
                "call generate without the drafter."
            )

    def adopt(self, cache: Any) -> None:
        """Go on with the cache the forward gave back: Phi-3 starts anew where its frequencies change."""
        if cache is self.cache:
            return
        self.end()
        self.cache = cache
        if self._taken:  # in a round: the new cache holds its rows, and must remember enough to go back
            self.begin(self.length + self._taken)
            self.length -= self._taken

    def take(self, rows: int) -> None:
        """The next forward will append ``rows`` tokens; the prefill any number, none of which will be dropped."""
        self._open = [self._standing(number, layer) for number, layer in enumerate(self.cache.layers)]
        self._taken = rows
        self._reach = max(self._reach, self.length + rows)

    @property
    def spare_bytes(self) -> int:
        """Bytes of memory held beside the cache."""
        return 0

    def replays(self, rows: int) -> bool:
        """Whether :meth:`keep` would run parts of the target again."""
        return False

    def keep(self, rows: int) -> None:
        """Of the rows last taken, the first ``rows`` stay; the others are dropped."""
        dropped = self._taken - rows
        assert dropped >= 0, "keeping more rows than were taken"
        if dropped or self._modes:
            self._crop(dropped)  # of 0, lets sliding layers forget what lies behind their window
        self.length += rows
        self._open = None

    def _crop(self, dropped: int) -> None:
        self.cache.crop(-dropped)

    def end(self) -> None:
        """Leave the cache as plain decoding would: its own mode, and no rows of an unfinished round."""
        if self._open is not None:  # a forward was cut short, maybe between two layers
            del self.cache.layers[len(self._open) :]  # some caches make a layer when it is first written
            for layer, before in zip(self.cache.layers, self._open, strict=True):
                if self.static and hasattr(layer, "get_seq_length"):
                    self._reach = max(self._reach, int(layer.get_seq_length()))
                self._go_back(layer, before)
            self._open = None
        for layer, recorded in self._modes:
            layer.record_past = recorded
        self._modes = []
        if self.static:
            self._wipe()

    def _wipe(self) -> None:
        """A static layer drops tokens by counting back: empty what plain decoding would have left empty."""
        for layer in self.cache.layers:
            longest = getattr(layer, "max_cache_len", None)
            for rows in vars(layer).values():  # keys, values, and the keys of an index
                if _is_filled(rows) and rows.shape[-2] == longest:
                    rows[..., self.length : self._reach, :] = 0

    def _standing(self, number: int, layer: Any) -> dict[str, Any]:
        """How a layer goes back: by how far it reaches, or by all it holds where that is not enough.

        It is not where a layer has no length (short convolutions), forgets what lies behind a window, or holds nothing
        yet. A layer that keeps everything is not held on to: its old tensors would double the memory of a prefill.
        """
        if hasattr(layer, "get_seq_length") and not hasattr(layer, "record_past") and layer.is_initialized:
            return _Reach({name: _extent(value) for name, value in vars(layer).items()})
        return {name: _apart(value) for name, value in vars(layer).items()}

    def _go_back(self, layer: Any, before: dict[str, Any]) -> None:
        held = vars(layer)
        if isinstance(before, _Reach):
            before = {name: _cut(held[name], value) for name, value in before.items()}
        held.clear()
        held.update(before)


class _Reach(dict[str, Any]):
    """What a layer holds, its tensors by their shapes: tokens are appended, and so can be cut off again.

    Each by itself: sparse attention also has an index, which a forward may have been stopped before or after.
    """


def _is_filled(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 1


def _extent(value: Any) -> Any:
    return value.shape if _is_filled(value) else _apart(value)


def _cut(now: Any, before: Any) -> Any:
    """What a layer held before: of its tensors the rows they had; a static layer counts in place, where it is read."""
    if isinstance(before, torch.Size):
        return now if now.shape == before else now[tuple(map(slice, before))]
    counts = isinstance(before, Tensor) and isinstance(now, Tensor) and now.shape == before.shape
    return now.copy_(before) if counts else before


def _apart(value: Any) -> Any:
    """A layer replaces its keys, but counts in place, and a convolution writes in place into what its dicts hold."""
    if isinstance(value, dict):
        return {key: held.clone() if isinstance(held, Tensor) else held for key, held in value.items()}
    if isinstance(value, list):
        return list(value)
    return value.clone() if isinstance(value, Tensor) and not _is_filled(value) else value


def _window(layer: Any) -> int | None:
    return int(layer.sliding_window) if getattr(layer, "is_sliding", False) else None
