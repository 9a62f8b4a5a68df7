"""Whose run is whose: one ticket a visitor, nothing shared between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from threading import Lock
from uuid import uuid4

from dflash_demo.settings import Request

__all__ = ["Ticket", "Visitors"]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A run that was asked for. Whoever holds it may stop it, before or while it runs, also from another process.

    The run may be in a process of its own (ZeroGPU), so the sign to stop is a file.
    """

    request: Request
    run: str = field(default_factory=lambda: uuid4().hex)

    @property
    def _flag(self) -> Path:
        return Path(gettempdir()) / f"dflash-demo-stop-{self.run}"

    def stop(self) -> None:
        """Ends ``generate`` at its next round or token."""
        self._flag.touch()

    @property
    def stopped(self) -> bool:
        return self._flag.exists()

    def put_away(self) -> None:
        """The run is over: nothing of it is left behind."""
        self._flag.unlink(missing_ok=True)


class Visitors:
    """Tickets of runs that wait or go on, by visitor."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tickets: dict[str, Ticket] = {}

    def begin(self, visitor: str, ticket: Ticket) -> int:
        """This visitor's ticket from now on; an older one is stopped. Returns how many others are before it."""
        with self._lock:
            if older := self._tickets.pop(visitor, None):
                older.stop()
            self._tickets[visitor] = ticket
            return len(self._tickets) - 1

    def current(self, visitor: str) -> Ticket | None:
        with self._lock:
            return self._tickets.get(visitor)

    def stop(self, visitor: str) -> None:
        """Stop the visitor's run, also one that still waits."""
        if ticket := self.current(visitor):
            ticket.stop()

    def leave(self, visitor: str) -> None:
        """The visitor wants no more of their run: it is stopped, and nothing of it is shown."""
        if ticket := self.current(visitor):
            ticket.stop()
            self.end(visitor, ticket)

    def end(self, visitor: str, ticket: Ticket) -> None:
        """The run is over."""
        with self._lock:
            if self._tickets.get(visitor) is ticket:
                del self._tickets[visitor]
