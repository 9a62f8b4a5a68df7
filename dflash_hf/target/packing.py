"""Narrow matrix products on a CPU, with weights that are laid out for them once.

A pass over the few tokens of a block is bound by the reading of weights. torch's CPU product of 2 to 16 rows with a
weight matrix rearranges that matrix at every call, and so costs two passes over one token; oneDNN multiplies with a
copy that was rearranged once, at little more than the cost of one. The copies live beside the model, whose weights are
not touched: while a call runs, its linear layers read their copies, on its thread alone. Later calls read the same
copies, for as long as the weights they were made from are the same to the last bit.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary, ref

import psutil
import torch
from torch import Tensor, nn

from dflash_hf.errors import OptionsError

__all__ = ["Pack", "PackedWeights"]

Pack = Literal["auto", "always", "never"]

_WORTH_BYTES = 64 * 2**20  # less than this sits in the processor's caches and gains nothing
_SHARE_OF_FREE = 4  # "auto" takes at most one part in this many of the free memory


class PackedWeights:
    """A ``with`` block in which the linear layers of ``modules`` read packed copies, on this thread.

    Taken are plain ``nn.Linear`` layers on an x86 CPU in float32, and in bfloat16 where the CPU has no instructions
    for it (their copies are float32, so that a product is summed in float32 and rounded once); all others compute as
    ever.

    Args:
        modules: the target and its drafter.
        pack: "auto" packs what is worth it and takes little of the free memory; "always" and "never" as they say.

    Raises:
        OptionsError: "always", where nothing can be packed.

    Attributes:
        bytes: what the copies of this block take.
    """

    def __init__(self, modules: Iterable[nn.Module], pack: Pack = "auto") -> None:
        self._modules, self._pack = list(modules), pack
        self._readers: list[_Reader] = []

    @property
    def bytes(self) -> int:
        return sum(reader.bytes for reader in self._readers)

    def __enter__(self) -> PackedWeights:
        linears = [] if self._pack == "never" or not _machine_packs() else list(_packable(self._modules))
        if self._pack != "never":
            with _LOCK:
                _forget_others(self._modules, linears)
        if self._pack == "always" and not linears:
            raise OptionsError(
                "pack_weights='always' finds nothing to pack: it takes plain linear layers in float32 on an x86 CPU"
            )
        if self._pack == "auto" and not _worth_it(linears):
            linears = []
        try:
            self._let_in(linears)
        except BaseException:  # out of memory, Ctrl-C
            self._let_out()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_out()

    def _let_in(self, linears: list[nn.Linear]) -> None:
        with _LOCK:
            for linear in linears:
                if (reader := _reader_of(linear)) is not None:
                    self._readers.append(reader)
                    reader.let_in(linear)

    def _let_out(self) -> None:
        with _LOCK:
            while self._readers:
                self._readers.pop().let_out()


class _Reader:
    """Stands in for one layer's ``forward`` while somebody reads its copy; to other threads it is the layer's own."""

    def __init__(self, linear: nn.Linear) -> None:
        self._linear = ref(linear)  # the copy must not keep the layer alive
        self.stamp, self.bytes = _stamp(linear.weight), _bytes(linear)
        self._copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().float(), None)
        self._threads: Counter[int] = Counter()

    def let_in(self, linear: nn.Linear) -> None:
        self._threads[threading.get_ident()] += 1
        linear.forward = self  # type: ignore[method-assign, assignment]

    def let_out(self) -> None:
        self._threads[threading.get_ident()] -= 1
        self._threads += Counter()  # drops what is not above 0
        linear = self._linear()
        if not self._threads and linear is not None and vars(linear).get("forward") is self:
            del vars(linear)["forward"]

    def __reduce__(self) -> tuple[Any, ...]:
        """A model that is copied or pickled meanwhile takes no part: its layers compute as ever."""
        return partial, (nn.Linear.forward, self._linear())

    @property
    def in_use(self) -> bool:
        return bool(self._threads)

    def __call__(self, hidden_states: Tensor) -> Tensor:
        linear = self._linear()
        assert linear is not None, "a layer that is called is alive"
        # A product of copies has no gradient, and somebody may have put other weights in their place for a moment.
        changed = linear.weight.data_ptr() != self.stamp.place
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or changed:
            return nn.Linear.forward(linear, hidden_states)
        dtype = hidden_states.dtype
        lone = dtype != torch.float32 and hidden_states.shape[:-1].numel() == 1  # half the bytes to read
        if threading.get_ident() not in self._threads or dtype != linear.weight.dtype or lone:
            return nn.Linear.forward(linear, hidden_states)
        bias = None if linear.bias is None else linear.bias.float()
        product: Tensor = torch.ops.mkldnn._linear_pointwise(hidden_states.float(), self._copy, bias, "none", [], "")
        return product.to(dtype)


_COPIES: WeakKeyDictionary[nn.Linear, _Reader] = WeakKeyDictionary()
_LOCK = threading.RLock()


def _reader_of(linear: nn.Linear) -> _Reader | None:
    """The copy of this layer, made anew when its weights have changed; None while others read an outdated one."""
    reader = _COPIES.get(linear)
    if reader is not None and reader.stamp == _stamp(linear.weight):
        return reader
    if reader is not None and reader.in_use:
        return None
    _COPIES[linear] = reader = _Reader(linear)
    return reader


class _Stamp(NamedTuple):
    """What tells weights from others: where they are, torch's count of changes, and sums of their bits."""

    place: int
    version: int | None
    sums: tuple[int, int]


def _stamp(weight: Tensor) -> _Stamp:
    """At the price of reading the weights twice. ``.data`` can be written to without torch's counting it.

    The sums are over rows and over columns, each weighted by its place, so that a change of order shows too.
    """
    version = None if weight.is_inference() else weight._version
    flat = weight.detach().reshape(-1).view(torch.uint8)
    wide = torch.int64 if flat.data_ptr() % 8 == 0 and flat.storage_offset() % 8 == 0 else torch.uint8
    if wide == torch.int64 and weight.shape[-1] * weight.itemsize % 8:
        wide = torch.uint8
    bits = flat.view(wide).view(len(weight), -1)
    return _Stamp(weight.data_ptr(), version, (_weighted(bits.sum(dim=1)), _weighted(bits.sum(dim=0))))


def _weighted(sums: Tensor) -> int:
    return int((sums * torch.arange(1, 2 * len(sums), 2)).sum())


def _packable(modules: Iterable[nn.Module]) -> Iterator[nn.Linear]:
    """Plain linear layers whose weights lie on the CPU, each once: no subclass, no other ``forward``."""
    if torch.is_autocast_enabled("cpu"):
        return
    dtypes = {torch.float32} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else {torch.float32, torch.bfloat16}
    for linear in dict.fromkeys(each for module in modules for each in module.modules()):
        if not isinstance(linear, nn.Linear) or type(linear) is not nn.Linear:
            continue
        weight, forward = linear._parameters.get("weight"), vars(linear).get("forward")
        if type(weight) is not nn.Parameter or type(weight.data) is not Tensor or not _is_own(linear, forward):
            continue
        if weight.device.type == "cpu" and weight.dtype in dtypes and weight.is_contiguous():
            yield linear


def _is_own(linear: nn.Linear, forward: Any) -> bool:
    """Whether a ``forward`` found in the layer's own attributes is nobody else's: none, ours, or a copied model's."""
    copied = isinstance(forward, partial) and forward.func is nn.Linear.forward and forward.args[:1] == (linear,)
    return forward is None or isinstance(forward, _Reader) or copied


def _forget_others(modules: Iterable[nn.Module], linears: list[nn.Linear]) -> None:
    """Drop copies of layers that cannot read them any more: of another dtype or device since."""
    for layer in {each for module in modules for each in module.modules()} - set(linears):
        if isinstance(layer, nn.Linear) and (reader := _COPIES.get(layer)) is not None and not reader.in_use:
            del _COPIES[layer]


def _worth_it(linears: list[nn.Linear]) -> bool:
    """Whether packing pays: the copies that exist count as packed already."""
    whole = sum(map(_bytes, linears))
    new = sum(_bytes(linear) for linear in linears if linear not in _COPIES)
    return whole >= _WORTH_BYTES and new * _SHARE_OF_FREE <= psutil.virtual_memory().available


def _bytes(linear: nn.Linear) -> int:
    return linear.weight.numel() * torch.float32.itemsize


def _machine_packs() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64") and torch.backends.mkldnn.is_available()
