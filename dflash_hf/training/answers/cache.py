"""The target's cache while it answers: the host's, with room to grow in where it holds every token.

The host's layer puts each new token behind the others by copying them all; with room behind them only the new token
is written. Rows are taken out with the host's ``reorder_cache``, which every kind of layer has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

__all__ = ["answer_cache", "pads", "shares_start"]

_ROOM = 32  # tokens; a layer is copied once for so many
_MASKED = {"DummyLayer", "RoomyLayer", DynamicSlidingWindowLayer.__name__}  # dummies hold nothing: keys shared


class RoomyLayer(DynamicLayer):
    """The host's layer for full attention; ``keys`` and ``values`` are views of tensors with room for more tokens."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._rooms: tuple[Tensor, Tensor] | None = None  # [B, G, T + some, E]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """New keys and values [B, G, C, E] behind those held; all of them [B, G, T + C, E]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = int(self.get_seq_length())
        length = held + key_states.shape[-2]
        if self._rooms is None or self._rooms[0].shape[-2] < length:
            old = self._rooms or (key_states[:, :, :0], value_states[:, :, :0])
            self._rooms = (
                _room(key_states, old[0][:, :, :held], length),
                _room(value_states, old[1][:, :, :held], length),
            )
        keys, values = self._rooms
        keys[:, :, held:length], values[:, :, held:length] = key_states, value_states
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The rows ``beam_idx``, in its order."""
        if self._rooms is None:
            return
        keys, values = (room.index_select(0, beam_idx.to(room.device)) for room in self._rooms)
        length = self.get_seq_length()
        self._rooms = keys, values
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]


def answer_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for this target's layers, as its config has them."""
    cache = DynamicCache(config=model.config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def pads(cache: Any) -> bool:
    """Whether rows of different lengths may share it, padded on the left: attention over all or the last tokens only.

    Recurrent and convolutional layers have no mask that every model applies alike.
    """
    return {type(layer).__name__ for layer in cache.layers} <= _MASKED


def shares_start(cache: Any) -> bool:
    """Whether padding may stand between a common start and the rest: a window would count it."""
    return all(type(layer) is RoomyLayer for layer in cache.layers)


def _room(new: Tensor, held: Tensor, length: int) -> Tensor:
    """Room for ``length`` tokens like ``new`` and some more, filled with those held."""
    room = torch.empty(*new.shape[:2], length + _ROOM, new.shape[-1], dtype=new.dtype, device=new.device)
    room[:, :, : held.shape[-2]] = held
    return room
