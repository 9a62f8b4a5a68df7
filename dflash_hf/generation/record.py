"""The trace of the last drafted call, per thread, and what a new trace is stamped with."""

from __future__ import annotations

import threading

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.target.view import TargetView, model_name, public_name
from dflash_hf.trace import Trace

__all__ = ["forget", "last_trace", "new_trace", "remember"]

_local = threading.local()


def last_trace() -> Trace | None:
    """The trace of this thread's last drafted call, or of why it was not drafted.

    None when the last call of an attached model's ``generate`` named no drafter, or ran in transformers' own loop.
    """
    return getattr(_local, "trace", None)


def remember(trace: Trace) -> None:
    _local.trace = trace


def forget() -> None:
    """A new call begins: until it leaves a trace of its own there is none."""
    _local.trace = None


def new_trace(view: TargetView, drafter: DFlashDrafter, state: str) -> Trace:
    """An empty trace that says which pair it is of, and how the target's memory goes back."""
    return Trace(
        state=state,
        block_size=drafter.config.block_size,
        target=view.public_name,
        drafter=public_name(model_name(drafter)),
        dtype=str(view.model.dtype).removeprefix("torch."),
        device=str(view.device),
        attn_implementation=str(view.model.config._attn_implementation),
    )
