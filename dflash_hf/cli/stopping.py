"""SIGTERM ends long work as Ctrl-C does, and a person is told how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dflash_hf.cli.command import note

__all__ = ["stoppable"]


@contextmanager
def stoppable(how_to_go_on: str) -> Iterator[None]:
    """Inside the block SIGTERM raises KeyboardInterrupt; the handler before comes back after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        note(f"\nstopped; {how_to_go_on}")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
