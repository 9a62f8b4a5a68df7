"""From a ticket to what its visitor is told: messages for the browser, and at the end the run as a file's content.

Two halves, because on ZeroGPU a run is in a process of its own: ``teller`` is there, and takes and gives plain data;
``follow`` stays with the page and its visitors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from dflash_demo.pairs import Pairs
from dflash_demo.runs import Run
from dflash_demo.saved import saved_run
from dflash_demo.settings import Limits
from dflash_demo.story import Story
from dflash_demo.visitors import Ticket, Visitors
from dflash_hf import __version__

__all__ = ["Tell", "ended", "follow", "teller"]

# ("message", for the browser) many times, then ("saved", the file's content, or None where there is nothing to save)
Tell = Callable[[Ticket], Iterator[tuple[str, Any]]]

_log = logging.getLogger(__name__)


def teller(pairs: Pairs, limits: Limits) -> Tell:
    """Runs tickets, one at a time."""

    def tell(ticket: Ticket) -> Iterator[tuple[str, Any]]:
        run = Run(pairs, ticket, limits)
        for message in run.messages():
            yield "message", message
        made = f"{datetime.now(UTC):%Y-%m-%d} with dflash-hf {__version__}"
        yield "saved", None if run.outcome.trace is None else saved_run(run, made)

    return tell


def follow(tell: Tell, visitors: Visitors, visitor: str) -> Iterator[tuple[str, Any]]:
    """The visitor's run, for as long as it is what they want to see.

    What goes wrong outside the run itself (no GPU to be had, a full disk) is told on the page like any other failure.
    """
    ticket = visitors.take(visitor)
    if ticket is None:
        return
    last = Story.of(ticket).message()
    try:
        with closing(tell(ticket)) as told:  # type: ignore[type-var]
            for kind, body in told:
                if visitors.current(visitor) is not ticket:
                    return  # something else is on this visitor's page by now
                last = body if kind == "message" else last
                yield kind, body
    except Exception as error:
        _log.exception("a run cannot be followed")
        said = getattr(error, "message", None) or error  # Gradio's own errors keep their text there
        yield "message", ended(last, "failed", "error", f"{type(error).__name__}: {said}")
    finally:
        visitors.end(visitor, ticket)


def ended(message: dict[str, Any], phase: str, kind: str, text: str) -> dict[str, Any]:
    """The same message of a run that got no further, and why."""
    return {**message, "phase": phase, "notice": {"kind": kind, "text": text}}
