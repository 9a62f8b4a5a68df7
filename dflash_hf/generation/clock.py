"""Where a round's time goes, without making the device wait: events on CUDA, the wall clock elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dflash_hf.trace import RoundRecord, Trace

__all__ = ["RoundClock"]

_Mark = tuple[str, Any, Any]  # phase, start, end


class RoundClock:
    """Marks phases of the prefill and of each round; :meth:`write_to` turns them into a trace's milliseconds.

    Args:
        device: where the target computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = device.type == "cuda"
        self._closed: list[tuple[RoundRecord | None, list[_Mark]]] = []
        self._open: list[_Mark] = []

    def _now(self) -> Any:
        if not self._events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything inside counts to ``name``: drafter, head, target, round or prefill."""
        started = self._now()
        yield
        self._open.append((name, started, self._now()))

    def close(self, record: RoundRecord | None) -> None:
        """The open marks belong to this finished round, or to the prefill."""
        self._closed.append((record, self._open))
        self._open = []

    def write_to(self, trace: Trace) -> None:
        """Add the times of what was closed since the last call. On CUDA this waits for the device."""
        if self._events and self._closed:
            torch.cuda.synchronize()
        for record, marks in self._closed:
            for name, started, ended in marks:
                elapsed = float(started.elapsed_time(ended)) if self._events else 1e3 * (ended - started)
                if record is not None:
                    setattr(record, f"{name}_ms", getattr(record, f"{name}_ms") + elapsed)
                elif name == "prefill":
                    trace.prefill_ms += elapsed
        self._closed.clear()
