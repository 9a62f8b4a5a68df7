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

    The run may be in a process of its own (ZeroGPU), so the sign is a file. It is there for as long as the run may go
    on, and to stop is to remove it: whatever comes first, and however often, nothing is left behind.
    """

    request: Request
    run: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        self._sign.touch()

    @property
    def _sign(self) -> Path:
        return Path(gettempdir()) / f"dflash-demo-run-{self.run}"

    def stop(self) -> None:
        """Ends ``generate`` at its next round or token; of a run that is over, nothing."""
        self._sign.unlink(missing_ok=True)

    @property
    def stopped(self) -> bool:
        return not self._sign.exists()


class Visitors:
    """Tickets of runs that wait or go on, by visitor."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tickets: dict[str, Ticket] = {}
        self._begun: set[str] = set()  # runs whose turn has come

    def begin(self, visitor: str, ticket: Ticket) -> int:
        """This visitor's ticket from now on; an older one is stopped. Returns how many others are before it."""
        with self._lock:
            self._drop(visitor)
            self._tickets[visitor] = ticket
            return len(self._tickets) - 1

    def current(self, visitor: str) -> Ticket | None:
        with self._lock:
            return self._tickets.get(visitor)

    def take(self, visitor: str) -> Ticket | None:
        """The visitor's ticket, whose turn has come; None where they have none, or it has had its turn."""
        with self._lock:
            ticket = self._tickets.get(visitor)
            if ticket is None or ticket.run in self._begun:
                return None
            self._begun.add(ticket.run)
            return ticket

    def stop(self, visitor: str) -> Ticket | None:
        """Stop the visitor's run. One that still waited is over at once, and its ticket is returned."""
        with self._lock:
            ticket = self._tickets.get(visitor)
            if ticket is None:
                return None
            if ticket.run in self._begun:
                ticket.stop()
                return None
            return self._drop(visitor)

    def leave(self, visitor: str) -> Ticket | None:
        """The visitor wants no more of their run: it is stopped, and nothing of it is shown."""
        with self._lock:
            return self._drop(visitor)

    def end(self, visitor: str, ticket: Ticket) -> None:
        """The run is over."""
        ticket.stop()
        with self._lock:
            self._begun.discard(ticket.run)
            if self._tickets.get(visitor) is ticket:
                del self._tickets[visitor]

    def stop_all(self) -> None:
        """The page is closed."""
        with self._lock:
            for visitor in list(self._tickets):
                self._drop(visitor)

    def _drop(self, visitor: str) -> Ticket | None:
        if ticket := self._tickets.pop(visitor, None):
            ticket.stop()
        return ticket
