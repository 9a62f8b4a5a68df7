"""Whose run is whose: one run a visitor, nothing shared between them."""

from __future__ import annotations

from threading import Lock

from dflash_demo.runs import Run

__all__ = ["Visitors"]


class Visitors:
    """Runs that wait or go on, by visitor, in the order they came."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs: dict[str, Run] = {}

    def begin(self, visitor: str, run: Run) -> int:
        """This visitor's run from now on; an older one of theirs is stopped. Returns how many others are before it."""
        with self._lock:
            if older := self._runs.pop(visitor, None):
                older.stop()
            self._runs[visitor] = run
            return len(self._runs) - 1

    def current(self, visitor: str) -> Run | None:
        with self._lock:
            return self._runs.get(visitor)

    def stop(self, visitor: str) -> None:
        """Stop the visitor's run, also one that still waits."""
        if run := self.current(visitor):
            run.stop()

    def end(self, visitor: str, run: Run) -> None:
        """The run is over."""
        with self._lock:
            if self._runs.get(visitor) is run:
                del self._runs[visitor]
