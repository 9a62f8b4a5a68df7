"""A target is tried out on one token, once, before the first drafted call does anything else.

Code that a checkpoint brings along may go around its own modules, where no hook hears of them, or fill a cache in a way
that cannot go back. Neither shows until the target has run. So it reads one token into a cache of its own, as a prompt
is read; what would have failed in the middle of a call is known before it. Nothing of the user's takes part but the
model, and what a model notes on itself about a conversation is put back.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig

from dflash_hf.config import DFlashConfig
from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.target import host
from dflash_hf.target.replay import state_of
from dflash_hf.target.taps import TapRecorder
from dflash_hf.target.view import TargetView

__all__ = ["try_out"]

_reasons: WeakKeyDictionary[nn.Module, dict[Any, str | None]] = WeakKeyDictionary()


def try_out(view: TargetView, config: DFlashConfig) -> None:
    """Refuse a target whose layers a drafter of this config cannot hear, or whose memory cannot go back.

    The answer is kept for as long as the model lives and its modules are of the same classes.

    Raises:
        UnsupportedTargetError: by name.
    """
    kinds = (type(view.model), type(view.decoder), *map(type, view.layers))
    asked = (tuple(config.target_layer_ids), config.last_tap, kinds)
    known = _reasons.setdefault(view.model, {})
    if asked not in known:
        known[asked] = _find_reason(view, config)
    if (reason := known[asked]) is not None:
        raise UnsupportedTargetError(reason)


def _find_reason(view: TargetView, config: DFlashConfig) -> str | None:
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices), _noting_nothing(view.model):
            _read_one_token(view, config)
    except UnsupportedTargetError as error:
        return str(error)
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError):
        return None  # it takes more than ids: its own call will say what, and whether it can be heard
    return None


@torch.no_grad()
def _read_one_token(view: TargetView, config: DFlashConfig) -> None:
    """As the loop reads a prompt: taps heard, memory ready to go back."""
    model, key = view.model, host.cache_key(view.model)
    ids = torch.tensor([[_common_token(view)]], device=view.device)
    kwargs: dict[str, Any] = {key: DynamicCache(config=model.config), "use_cache": True}
    if "attention_mask" in inspect.signature(model.forward).parameters:
        kwargs["attention_mask"] = torch.ones_like(ids)
    state = state_of(view, kwargs[key])
    taps = TapRecorder(view, config.target_layer_ids, config.last_tap)
    try:
        state.take(0)
        with taps.listen(lambda *_: None):
            outputs = host.prefill(model, ids, GenerationConfig(), kwargs)
        state.adopt(host.cache_of(model, host.extend(model, outputs, kwargs, 1)))
        state.begin(1)
    finally:
        state.end()


def _common_token(view: TargetView) -> int:
    """An id that stands for nothing but text, and so asks for no picture."""
    first = getattr(view.text_config, "bos_token_id", None)
    return first if isinstance(first, int) and 0 <= first < view.vocab_rows else 0


@contextmanager
def _noting_nothing(model: nn.Module) -> Iterator[None]:
    """Tensors that modules note as attributes during this block (``rope_deltas``) are those from before it after it."""
    before = {part: {name: held for name, held in vars(part).items() if _is_note(held)} for part in model.modules()}
    try:
        yield
    finally:
        for part, notes in before.items():
            now = vars(part)
            now.update({name: held for name, held in notes.items() if name in now and _is_note(now[name])})


def _is_note(held: Any) -> bool:
    return held is None or isinstance(held, Tensor)
