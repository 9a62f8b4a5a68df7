"""Taps: what the target's layers put out, caught by forward hooks while its owner is listening.

The tap of layer ``i`` equals the host's ``hidden_states[i + 1]`` bit for bit: the layer's output, -1 being what goes
into the first layer. For the last layer it is the state after the final norm, as z-lab's code reads it, or before it,
as the engines do (``last``). Only tapped layers are kept, and only for forwards
that the owner announces, on the owner's thread: any other forward of the same model (guidance's inner calls, other
threads, the user's own) passes unseen.
Shapes: B rows, C tokens of a forward, L taps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from dflash_hf.config import DFlashConfig
from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.target.view import TargetView

__all__ = ["RAW_LAST", "TapRecorder", "reads_raw_last"]

RAW_LAST = (
    "this drafter reads the target's last layer before the final norm, which neither the host's own assisted loop nor "
    "a compiled forward hands out; call generate(assistant=drafter) with a dynamic cache"
)

Sink = Callable[[Tensor, Tensor | None], None]  # taps [B, C, L * width], position ids [B, C] if the target got any


def reads_raw_last(config: DFlashConfig, num_layers: int) -> bool:
    """Whether a drafter wants what the host's ``hidden_states`` do not have."""
    return config.last_tap == "raw" and num_layers - 1 in config.target_layer_ids


class TapRecorder:
    """Hooks on the tapped layers for the length of a ``with`` block; deaf until :meth:`listen`.

    Without the block, the hooks are there while somebody listens only.

    Args:
        view: the target.
        layer_ids: 0-based layers, in the order the drafter wants them; -1 is the embedding's output.
        last: the last layer's tap is "normed" or "raw".
    """

    def __init__(self, view: TargetView, layer_ids: list[int], last: str = "normed") -> None:
        self._view = view
        self._layer_ids = layer_ids
        self._norms_last = last == "normed"
        self._handles: list[Any] = []
        self._owner = threading.get_ident()
        self._sink: Sink | None = None
        self._at_once: int | None = None
        self._heard = False  # a forward, since somebody listens
        self._caught: dict[int, Tensor] = {}
        self._positions: Tensor | None = None
        self.most_bytes = 0  # most that taps took at once: the layers' outputs of a forward, and a part side by side

    def __enter__(self) -> TapRecorder:
        view = self._view
        self._handles.append(view.decoder.register_forward_pre_hook(self._on_start, with_kwargs=True))
        for index in set(self._layer_ids) - {-1, self._normed_layer}:
            self._handles.append(view.layers[index].register_forward_hook(self._on_layer(index)))
        if -1 in self._layer_ids:
            self._handles.append(view.layers[0].register_forward_pre_hook(self._on_first_layer, with_kwargs=True))
        self._handles.append(view.decoder.register_forward_hook(self._on_end))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forget()

    @contextmanager
    def listen(self, sink: Sink, at_once: int | None = None) -> Iterator[None]:
        """Hand the taps of every forward inside this block to ``sink``: whole, or in parts of ``at_once`` tokens.

        Side by side, the taps of a long prompt would stand in memory twice.
        """
        assert self._sink is None, "listening twice"
        with nullcontext() if self._handles else self:
            self._sink, self._at_once, self._heard = sink, at_once, False
            try:
                yield
                self._refuse_silence()
            finally:
                self._sink = None
                self._forget()

    def _refuse_silence(self) -> None:
        """Somebody listened, and no forward went through the decoder: its model's own code goes around it."""
        if not self._heard:
            raise self._hidden(
                f"its forward does not call {type(self._view.decoder).__name__}, the decoder found in it"
            )

    def _hidden(self, how: str) -> UnsupportedTargetError:
        return UnsupportedTargetError(
            f"{self._view.name} ({type(self._view.model).__name__}) hides its decoder layers from forward hooks: "
            f"{how}; let its code call the modules themselves, or call generate without the drafter."
        )

    @property
    def _normed_layer(self) -> int | None:
        """The layer whose tap is what comes out of the whole stack."""
        return self._view.num_layers - 1 if self._norms_last else None

    def of(self, hidden_states: Sequence[Tensor]) -> Tensor:
        """The same taps [B, C, L * width] from the ``hidden_states`` that a forward was asked for."""
        return torch.cat([hidden_states[index + 1] for index in self._layer_ids], dim=-1)

    def _forget(self) -> None:
        self._caught = {}
        self._positions = None

    @property
    def _listening(self) -> bool:
        return self._sink is not None and threading.get_ident() == self._owner

    def _on_start(
        self, _module: nn.Module, args: Any, kwargs: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]] | None:
        # On another thread torch may find this hook gone half-way and call it without kwargs: it is deaf there anyway.
        if not self._listening or kwargs is None:
            return None
        self._forget()
        self._positions = kwargs.get("position_ids")
        # Where the last layers share keys and values (Gemma 4) they run for the asked-for rows alone; taps want all.
        return (args, kwargs | {"logits_to_keep": 0}) if "logits_to_keep" in kwargs else None

    def _on_first_layer(self, _module: nn.Module, args: Any, kwargs: dict[str, Any] | None = None) -> None:
        if self._listening and kwargs is not None:
            self._caught[-1] = args[0] if args else kwargs["hidden_states"]

    def _on_layer(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            if self._listening:
                self._caught[index] = _first(output)

        return hook

    def _on_end(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if not self._listening:
            return
        assert self._sink is not None
        if (last := self._normed_layer) is not None and last in self._layer_ids:
            self._caught[last] = _first(getattr(output, "last_hidden_state", output))
        self._heard = True
        if silent := [index for index in self._layer_ids if index not in self._caught]:
            raise self._hidden(f"layer {silent[0]} did not run as a module of its own")
        tapped = [self._caught[index] for index in self._layer_ids]
        positions, sink = self._positions, self._sink
        self._forget()
        count = tapped[0].shape[1]
        part = self._at_once or count
        held = sum(layer.nbytes for layer in tapped)
        self.most_bytes = max(self.most_bytes, held + held * min(part, count) // max(count, 1))
        for first in range(0, count, part):
            rows = slice(first, first + part)
            sink(_side_by_side(tapped, rows), None if positions is None else positions[..., rows])


def _side_by_side(tapped: Sequence[Tensor], rows: slice) -> Tensor:
    """Taps [B, rows, L * width]. Nobody here keeps them: the next part is made when this one is gone."""
    return torch.cat([layer[:, rows].to(tapped[0].device) for layer in tapped], dim=-1)


def _first(output: Any) -> Tensor:
    """The hidden states of what a layer or stack returned: alone, or first of several."""
    hidden: Tensor = output[0] if isinstance(output, tuple | list) else output
    return hidden
