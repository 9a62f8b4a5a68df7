"""``ReplayState``: how a target with recurrent layers takes a block and goes back.

    take(K)   each recurrent layer writes into a second buffer; what it held stays as it was
    forward   the input of each mixer is noted
    keep(m)   m = K: the second buffer is what holds now; nothing else is done
              m < K: attention drops K - m tokens; each mixer runs again, over its first m inputs only

So a partly accepted round costs one more pass through the mixers, without MLPs, attention or head, and memory for the
states once more (``spare_bytes``). Layers without a recurrent state go back as in ``CropState``.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.target.recurrent import Mixers, mixers_of
from dflash_hf.target.state import CropState
from dflash_hf.target.view import TargetView

__all__ = ["ReplayState", "state_of"]

_STATES = ("conv_states", "recurrent_states")  # of a cache layer: dicts of tensors that the host writes in place
_FLAGS = ("has_previous_state", "is_conv_states_initialized", "is_recurrent_states_initialized")


def state_of(view: TargetView, cache: Any) -> CropState:
    """How ``cache``, of one row, goes back: by replay where the target has recurrent layers."""
    mixers = mixers_of(view)
    return ReplayState(cache, view.layer_types, mixers) if mixers else CropState(cache, view.layer_types)


class ReplayState(CropState):
    """A host cache with recurrent layers, driven like any other.

    Args:
        cache, layer_types: as for :class:`CropState`.
        mixers: the modules that write the cache's recurrent states.
    """

    kind = "replay"

    def __init__(self, cache: Any, layer_types: Any, mixers: Mixers) -> None:
        super().__init__(cache, layer_types)
        self._mixers = mixers
        self._hooks: list[Any] = []
        self._owner = threading.get_ident()
        self._inputs: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._buffers: dict[tuple[int, str, int], tuple[Tensor, Tensor]] = {}  # the cache's own, and ours

    @property
    def spare_bytes(self) -> int:
        """Bytes of the second buffers."""
        return sum(spare.numel() * spare.element_size() for _, spare in self._buffers.values())

    def begin(self, seen: int) -> None:
        """As for any cache; recurrent layers are put back by replay and need not remember."""
        super().begin(seen)
        self._hooks = [mixer.register_forward_pre_hook(self._note, with_kwargs=True) for _, mixer in self._mixers]

    def _remember(self) -> None:
        for layer in self.cache.layers:
            if hasattr(layer, "activate_past_recording") and (not _recurrent(layer) or _attends(layer)):
                layer.activate_past_recording()
        replayed = {number for number, _ in self._mixers}
        stuck = [
            type(layer).__name__
            for number, layer in enumerate(self.cache.layers)
            if not (number in replayed if _recurrent(layer) else layer.is_croppable)
        ]
        if stuck:
            raise UnsupportedTargetError(
                "the target's cache has layers that cannot go back after a verification "
                f"({', '.join(sorted(set(stuck)))}); call generate without the drafter."
            )

    def _crop(self, dropped: int) -> None:
        for layer in self.cache.layers:
            if not _recurrent(layer):
                layer.crop(-dropped)
            elif attention := _attends(layer):
                attention.crop(layer, -dropped)

    def replays(self, rows: int) -> bool:
        """Whether some of the rows last taken are to be dropped."""
        return rows < self._taken

    def keep(self, rows: int) -> None:
        """Of the rows last taken, the first ``rows`` stay; where some do not, the mixers run again over those."""
        if self.replays(rows):
            self._replay(rows)
        super().keep(rows)
        for layer in self.cache.layers:
            if _recurrent(layer) and layer.record_past:
                LinearAttentionLayer.crop(layer, 0)  # the convolution need not remember what replay puts back
        self._inputs.clear()

    def end(self) -> None:
        """Leave the cache as plain decoding would: the tensors it came with hold the states."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._inputs.clear()
        super().end()
        for (number, name, key), (own, _) in self._buffers.items():
            states = getattr(self.cache.layers[number], name)
            if states[key] is not own and states[key].shape == own.shape:
                states[key] = own.copy_(states[key])
        self._buffers.clear()

    def _note(self, mixer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._open is not None and threading.get_ident() == self._owner:
            self._inputs[mixer] = args, kwargs

    @torch.no_grad()
    def _replay(self, rows: int) -> None:
        taken, opened = self._taken, self._open
        assert opened is not None, "a replay without a forward"
        for number, mixer in self._mixers:
            args, kwargs = self._inputs[mixer]
            layer = self.cache.layers[number]
            self._restore(layer, opened[number])
            self._lend(number, layer)
            short = [_first_rows(each, rows, taken) for each in args]
            mixer.forward(*short, **{name: _first_rows(each, rows, taken) for name, each in kwargs.items()})

    def _standing(self, number: int, layer: Any) -> dict[str, Any]:
        if not _recurrent(layer):
            return super()._standing(number, layer)
        before = _States({name: dict(getattr(layer, name)) for name in (*_STATES, *_FLAGS)})
        self._lend(number, layer)
        return before

    def _lend(self, number: int, layer: Any) -> None:
        """Let the next forward write into second buffers; what the layer holds stays as it is."""
        for name in _STATES:
            states = getattr(layer, name)
            setattr(layer, name, {key: self._other(number, name, key, held) for key, held in states.items()})

    def _other(self, number: int, name: str, key: int, held: Tensor | None) -> Tensor | None:
        if held is None:
            return None
        own, spare = self._buffers.get((number, name, key), (held, held))
        if spare is own or own.shape != held.shape:
            own, spare = self._buffers[number, name, key] = held, torch.empty_like(held)
        other = own if held is spare else spare
        return other.copy_(held)

    def _go_back(self, layer: Any, before: dict[str, Any]) -> None:
        if not isinstance(before, _States):
            super()._go_back(layer, before)
            return
        self._restore(layer, before)
        if (attention := _attends(layer)) and (surplus := int(attention.get_seq_length(layer)) - self.length) > 0:
            attention.crop(layer, -surplus)

    @staticmethod
    def _restore(layer: Any, before: dict[str, Any]) -> None:
        for name, value in before.items():
            setattr(layer, name, dict(value))


class _States(dict[str, dict[int, Any]]):
    """What a recurrent layer goes back to: its own dicts, whose tensors nothing has written into since."""


def _recurrent(layer: Any) -> bool:
    """Whether this cache layer holds a recurrent state by now."""
    return any(state is not None for state in getattr(layer, "recurrent_states", {}).values())


def _attends(layer: Any) -> Any:
    """The attention half of a layer that has both, as a class; None where there is none."""
    return next((kind for kind in (DynamicSlidingWindowLayer, DynamicLayer) if isinstance(layer, kind)), None)


def _first_rows(value: Any, rows: int, taken: int) -> Any:
    """What stands for each of ``taken`` tokens along axis 1, for the first ``rows`` of them; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(_first_rows(each, rows, taken) for each in value)
    per_token = isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == taken
    return value[:, :rows] if per_token else value
