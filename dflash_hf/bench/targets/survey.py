"""Many architectures, examined in a process of their own, so that none can stop the others.

In: architectures. Out: a row for each, in order. A process that hangs or dies costs its architecture the row
(``not built``, or ``failed`` where it was already drafting) and the others nothing: a new process goes on after it.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from dflash_hf.bench.targets.names import Architecture
from dflash_hf.bench.targets.rows import FAILED, NOT_BUILT, Row

__all__ = ["LIMIT_S", "survey"]

LIMIT_S = 180.0  # an architecture, the start of a process included
_AT_ONCE = 60  # architectures a process, then a fresh one: what they leave behind stays bounded
_WORKER = (sys.executable, "-m", "dflash_hf.bench.targets.worker")


def survey(
    architectures: Sequence[Architecture],
    on_row: Callable[[Row], None] = lambda row: None,
    limit_s: float = LIMIT_S,
    worker: Sequence[str] = _WORKER,
) -> list[Row]:
    """Examine each.

    Args:
        architectures: which.
        on_row: called with every row as it comes.
        limit_s: seconds an architecture may take.
        worker: the command that examines the keys after it.
    """
    rows: list[Row] = []
    while left := architectures[len(rows) :]:
        for row in _Process(worker, left[:_AT_ONCE], limit_s).rows():
            rows.append(row)
            on_row(row)
    return rows


class _Process:
    """One run of the worker: rows until it ends, or until the architecture that ended it."""

    def __init__(self, worker: Sequence[str], architectures: Sequence[Architecture], limit_s: float) -> None:
        self._all, self._limit, self._lost = architectures, limit_s, False
        self._process = subprocess.Popen(
            [*worker, *(each.key for each in architectures)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put(None)

    def rows(self) -> Iterator[Row]:
        """Those it gives, and a last one for the architecture that it was lost at."""
        try:
            for architecture in self._all:
                yield self._row(architecture)
                if self._lost:
                    return
        finally:
            self._process.kill()
            self._process.wait()

    def _row(self, architecture: Architecture) -> Row:
        until, outcome = time.monotonic() + self._limit, NOT_BUILT
        while True:
            try:
                line = self._lines.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                why = f"it took more than {self._limit:g} s"
                break
            if line is None:
                why = f"its process ended with code {self._process.wait()}"
                break
            said = json.loads(line)
            if "drafting" not in said:
                return Row(**said)
            outcome = FAILED
        self._lost = True
        return Row(architecture.model_type, architecture.model_class, outcome, why)
