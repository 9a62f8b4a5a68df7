"""The injected key/value store: what a drafter knows of the tokens its target has verified.

DFlash does not feed the target's hidden states through the drafter; it writes them, projected, as keys and values
into every layer (arXiv 2602.06036, section 3). Committed rows stay, the block's own rows are scratch: the next
injection overwrites them.

Shapes: B rows, C context tokens of this injection, K slots, T rows held, G key/value heads, E head dim.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["DrafterContext", "GrowingContext", "TransientContext"]

_FIRST_CAPACITY = 256


class DrafterContext(Protocol):
    """Where injected keys and values live. ``begin`` opens an injection, ``inject`` fills it layer by layer."""

    def begin(self, positions: Tensor) -> None:
        """Announce rows at ``positions`` [B, C]; every layer then injects C rows."""

    def inject(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Commit keys and values [B, G, C, E] to one layer."""

    def with_block(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, G, T + K, E]: the layer's context, then the block's, which is not kept."""

    def key_positions(self, layer: int, block: Tensor) -> Tensor:
        """Positions [B, T + K] of what :meth:`with_block` returns, for a block at ``block`` [B, K]."""


class TransientContext:
    """Holds one injection by reference, without copies in place: gradients flow. For training and single passes.

    A context of one row serves a batch of blocks: it is injected once and shared by all of them.
    """

    def __init__(self) -> None:
        self._positions: Tensor | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def begin(self, positions: Tensor) -> None:
        assert self._positions is None, "a TransientContext takes one injection"
        self._positions = positions

    def inject(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self._layers[layer] = (keys, values)

    def with_block(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if layer not in self._layers:
            return keys, values
        context_keys, context_values = (part.expand(len(keys), -1, -1, -1) for part in self._layers[layer])
        return torch.cat([context_keys, keys], dim=2), torch.cat([context_values, values], dim=2)

    def key_positions(self, layer: int, block: Tensor) -> Tensor:
        if self._positions is None:
            return block
        return torch.cat([self._positions.expand(len(block), -1), block], dim=1)


class GrowingContext:
    """Keys and values in buffers that double when full, so that a round costs its own rows and not the history.

    A layer with a window keeps only rows a later block can still see (``window - 1``), once its buffer is full; the
    positions are kept for as many rows as the layer that keeps most. So with a window in every layer nothing grows.

    Args:
        windows: per layer, its window or None (``DFlashConfig.context_windows``).
    """

    def __init__(self, windows: list[int | None]) -> None:
        self._windows = list(windows)
        self._layers = [_LayerBuffer(window) for window in windows]
        self._positions = _PositionBuffer()

    @property
    def length(self) -> int:
        """Rows injected so far and not cropped, those that a window let go included."""
        return self._positions.length

    @property
    def window(self) -> int | None:
        """Of the layer that sees most, its own position counted; None where one sees everything."""
        reaches = [layer.reach for layer in self._layers]
        return None if None in reaches else 1 + max(reach for reach in reaches if reach is not None)

    @property
    def bytes(self) -> int:
        """Of the buffers as they stand."""
        return sum(part.bytes for part in self._parts())

    def limit(self, window: int | None) -> None:
        """From now on no layer sees more than the ``window`` newest positions, the block's anchor being the newest.

        A layer with a smaller window keeps it; None gives each layer its own again. Rows are let go when their buffer
        is full, and do not come back under a wider window.
        """
        for layer, own in zip(self._layers, self._windows, strict=True):
            limits = [each for each in (own, window) if each is not None]
            layer.reach = min(limits) - 1 if limits else None

    def begin(self, positions: Tensor) -> None:
        self._positions.append(positions, keep=max((layer.held for layer in self._layers), default=0))

    def inject(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self._layers[layer].append(keys, values)

    def settle(self) -> None:
        """After an interruption: forget rows that did not reach every layer."""
        whole = min(part.length for part in self._parts())
        for part in self._parts():
            part.drop(part.length - whole)

    def crop(self, rows: int) -> None:
        """Forget the newest ``rows`` rows, or all there are."""
        assert rows >= 0, "a context cannot be cropped to more than it holds"
        rows = min(rows, self.length)
        for part in self._parts():
            part.drop(rows)

    def forget_from(self, position: int) -> None:
        """Forget rows that stand at ``position`` or after it. Waits for the device, if anything is held."""
        if (held := self._positions.last(self._positions.held)) is not None:
            self.crop(int((held[0] >= position).sum()))

    def _parts(self) -> list[_PositionBuffer | _LayerBuffer]:
        return [self._positions, *self._layers]

    def with_block(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return self._layers[layer].view_with(keys, values)

    def key_positions(self, layer: int, block: Tensor) -> Tensor:
        held = self._positions.last(self._layers[layer].visible)
        return block if held is None else torch.cat([held.to(block.device), block], dim=1)


class _PositionBuffer:
    """Positions of the newest rows: at least of all that some layer holds."""

    def __init__(self) -> None:
        self.held = 0
        self.length = 0  # rows ever taken and not dropped
        self._places: Tensor | None = None

    @property
    def bytes(self) -> int:
        return 0 if self._places is None else self._places.nbytes

    def append(self, positions: Tensor, keep: int) -> None:
        """Take ``positions`` [B, C]; of earlier ones the newest ``keep`` are needed."""
        rows = positions.shape[1]
        if self._places is None or self.held + rows > self._places.shape[1]:
            kept = self.last(keep)
            with torch.inference_mode(False):
                grown = positions.new_empty(len(positions), max(_FIRST_CAPACITY, 2 * (keep + rows)))
            if kept is not None:
                grown[:, :keep] = kept
            self._places, self.held = grown, keep
        self._places[:, self.held : self.held + rows] = positions
        self.held += rows
        self.length += rows

    def last(self, count: int) -> Tensor | None:
        return None if self._places is None else self._places[:, self.held - count : self.held]

    def drop(self, rows: int) -> None:
        self.length -= rows
        self.held = max(self.held - rows, 0)


class _LayerBuffer:
    """One layer's keys and values. ``held`` rows are committed; rows after them are scratch."""

    def __init__(self, window: int | None) -> None:
        self.reach = None if window is None else window - 1  # rows of context the anchor, and so any slot, can see
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self.held = 0
        self.length = 0  # rows ever taken and not dropped: more than are held, where a window let some go

    @property
    def visible(self) -> int:
        return self.held if self.reach is None else min(self.held, self.reach)

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in (self._keys, self._values) if part is not None)

    def append(self, keys: Tensor, values: Tensor) -> None:
        rows = keys.shape[2]
        if self.reach is not None and rows > (most := max(self.reach, _FIRST_CAPACITY)):
            keys, values = keys[:, :, -most:], values[:, :, -most:]  # the others no block will see
            self.held = 0
        self._write(keys, values)
        self.held, self.length = self.held + keys.shape[2], self.length + rows

    def drop(self, rows: int) -> None:
        self.length -= rows
        self.held = max(self.held - rows, 0)

    def view_with(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self._write(keys, values)
        assert self._keys is not None and self._values is not None
        first, end = self.held - self.visible, self.held + keys.shape[2]
        return self._keys[:, :, first:end], self._values[:, :, first:end]

    def _write(self, keys: Tensor, values: Tensor) -> None:
        rows = keys.shape[2]
        if self._keys is None or self.held + rows > self._keys.shape[2]:
            self._make_room(keys, values, rows)
        assert self._keys is not None and self._values is not None
        self._keys[:, :, self.held : self.held + rows] = keys
        self._values[:, :, self.held : self.held + rows] = values

    def _make_room(self, keys: Tensor, values: Tensor, rows: int) -> None:
        """Move what is still visible to the front of a buffer with room for as much again."""
        keep = self.visible
        capacity = max(_FIRST_CAPACITY, 2 * (keep + rows))
        for name, like in (("_keys", keys), ("_values", values)):
            with torch.inference_mode(False):  # else it could not be written to in a turn outside that mode
                grown = like.new_empty(*like.shape[:2], capacity, like.shape[3])
            if keep:
                grown[:, :, :keep] = getattr(self, name)[:, :, self.held - keep : self.held]
            setattr(self, name, grown)
        self.held = keep
