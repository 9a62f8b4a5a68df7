"""Where a round's time goes, without making the device wait: events on CUDA, the wall clock elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dflash_hf.trace import RoundRecord

__all__ = ["RoundClock"]

PHASES = ("drafter", "head", "target", "round")


class RoundClock:
    """Marks phases of the current round; :meth:`write_to` turns all marks into milliseconds after the call.

    Args:
        device: where the target computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = device.type == "cuda"
        self._rounds: list[list[tuple[str, Any, Any]]] = []
        self._open: list[tuple[str, Any, Any]] = []

    def _now(self) -> Any:
        if not self._events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        assert name in PHASES
        started = self._now()
        yield
        self._open.append((name, started, self._now()))

    def close_round(self) -> None:
        """The marks since the last call belong to one finished round."""
        self._rounds.append(self._open)
        self._open = []

    def discard(self) -> None:
        """Forget marks that belong to no round (the prefill's)."""
        self._open = []

    def write_to(self, records: list[RoundRecord]) -> None:
        """Fill the times of finished rounds, one record a :meth:`close_round`."""
        if self._events:
            torch.cuda.synchronize()
        for record, marks in zip(records, self._rounds, strict=False):
            for name, started, ended in marks:
                field = f"{name}_ms"
                setattr(record, field, getattr(record, field) + self._elapsed(started, ended))

    def _elapsed(self, started: Any, ended: Any) -> float:
        return float(started.elapsed_time(ended)) if self._events else 1e3 * (ended - started)
