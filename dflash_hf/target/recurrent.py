"""Which layers of a target keep a recurrent state, and whether theirs can be drafted over.

A recurrent state (linear attention, state space models) is a sum over all tokens: no token can be taken out of it
again. It goes back by restoring an earlier state and running the module that wrote it, the *mixer*, over the tokens
that stay (``target.replay``). That asks two things of a mixer, and both are found out here rather than listed: that it
keeps its state in the host's cache, and that it continues several tokens at once as it does one by one. The mixers of
Mamba 1 and Jamba do not (transformers 5.18 to 5.24), nor does OLMo Hybrid's on 5.18.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from dflash_hf.target.devices import computing_device
from dflash_hf.target.host import cache_argument, keeps_recurrent_state
from dflash_hf.target.view import TargetView

__all__ = ["Mixers", "cannot_replay", "continuation_error", "mixers_of"]

Mixers = list[tuple[int, nn.Module]]  # the cache layer that a mixer writes, and the mixer; in the order they run

_BEFORE, _AT_ONCE = 4, 3  # tokens a mixer is tried on
_LIMIT = 0.05  # relative; wrong continuations are off by 0.1 and more, rounding in a wide random model by 0.01
_reasons: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()


def mixers_of(view: TargetView) -> Mixers:
    """The modules of a target's layers that write recurrent states into the host's cache."""
    found = []
    for module in view.layers.modules():
        number, kind = getattr(module, "layer_idx", None), cast("Any", type(module))
        if isinstance(number, int) and _writes_states(kind):
            found.append((number, module))
    return found


@cache
def _writes_states(kind: Any) -> bool:
    methods = (inspect.unwrap(method) for _, method in inspect.getmembers(kind, inspect.isfunction))
    return any("update_recurrent_state" in method.__code__.co_names for method in methods if inspect.isfunction(method))


def cannot_replay(view: TargetView) -> str | None:
    """Why the recurrent layers of this target cannot go back after a verification, or None; tried once a model.

    A model without recurrent layers has nothing to replay, which is no obstacle.
    """
    if not keeps_recurrent_state(view.model) and not mixers_of(view):
        return None
    if view.model not in _reasons:
        _reasons[view.model] = _find_reason(view)
    return _reasons[view.model]


def _find_reason(view: TargetView) -> str | None:
    kinds: dict[Any, tuple[int, nn.Module]] = {type(written[1]): written for written in reversed(mixers_of(view))}
    if not kinds:
        return "keeps a recurrent state elsewhere than in the cache, where it cannot be put back"
    for kind, written in kinds.items():
        try:
            error = continuation_error(view, written)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as problem:
            return f"has recurrent layers ({kind.__name__}) that cannot be run by themselves ({problem})"
        if not error <= _LIMIT:
            return (
                f"has recurrent layers ({kind.__name__}) that continue several tokens at once otherwise than one by "
                f"one in this release of transformers (off by {error:.2g} of the whole)"
            )
    return None


@torch.no_grad()
def continuation_error(view: TargetView, written: tuple[int, nn.Module]) -> float:
    """How far a mixer's continuation by several tokens is from the same tokens one by one, relative to the latter.

    ``written`` is one of :func:`mixers_of`. The larger of the errors of output and final state, on random input
    [1, 7, D] of unit variance.
    """
    width, device = view.hidden_size, computing_device(written[1], view.device)
    inputs = torch.randn(1, _BEFORE + _AT_ONCE, width, generator=torch.Generator().manual_seed(0))
    inputs = inputs.to(device, view.model.dtype)
    singly = _continued(view, written, inputs, [1] * _AT_ONCE)
    at_once = _continued(view, written, inputs, [_AT_ONCE])
    return max(_relative(mine, theirs) for mine, theirs in zip(at_once, singly, strict=True))


def _continued(view: TargetView, written: tuple[int, nn.Module], inputs: Tensor, steps: list[int]) -> list[Tensor]:
    """Output of the steps after the first tokens, then the final states."""
    number, mixer = written
    kind: Any = type(mixer)
    key = cache_argument(kind)
    held, outputs, at = DynamicCache(config=view.model.config), list[Tensor](), 0
    for count in (_BEFORE, *steps):
        output = mixer.forward(inputs[:, at : at + count], **{key: held})
        outputs.append(output[0] if isinstance(output, tuple) else output)
        at += count
    states = held.layers[number].recurrent_states
    return [torch.cat(outputs[1:], dim=1), *(state for state in states.values() if state is not None)]


def _relative(mine: Tensor, theirs: Tensor) -> float:
    return float((mine - theirs).float().norm() / theirs.float().norm())
