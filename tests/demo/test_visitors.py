"""Tickets and visitors: who is stopped, who is told what, and that nothing is left behind."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_demo.api import answering
from dflash_demo.pairs import Pairs
from dflash_demo.settings import Limits, Request
from dflash_demo.telling import follow, teller
from dflash_demo.visitors import Ticket, Visitors

ASKED = Request("a walk to", max_new_tokens=24)


@pytest.fixture
def left(signs: Path) -> Callable[[], list[Path]]:
    """Files that tickets of this test have left behind."""
    before = set(signs.iterdir())
    return lambda: sorted(set(signs.iterdir()) - before)


def phases(told: Iterator[tuple[str, Any]]) -> list[str]:
    return [body["phase"] for kind, body in told if kind == "message"]


def test_a_visitor_has_one_run_and_stops_only_their_own(left: Callable[[], list[Path]]) -> None:
    visitors, first, second, other = Visitors(), *(Ticket(ASKED) for _ in range(3))
    assert [visitors.begin(*who) for who in (("a", first), ("b", other), ("a", second))] == [0, 1, 1]
    assert visitors.take("a") is second
    visitors.stop("a")
    assert [ticket.stopped for ticket in (first, second, other)] == [True, True, False]
    visitors.end("a", first)  # an older run's end leaves the newer one
    assert visitors.current("a") is second
    visitors.end("a", second)
    assert visitors.stop("a") is None and visitors.current("a") is None  # nothing to stop
    visitors.leave("b")
    assert left() == []


def test_stop_ends_a_waiting_run_at_once_and_a_running_one_at_its_next_round() -> None:
    visitors, ticket = Visitors(), Ticket(ASKED)
    visitors.begin("a", ticket)
    assert visitors.stop("a") is ticket and visitors.take("a") is None
    visitors.begin("a", running := Ticket(ASKED))
    assert visitors.take("a") is running
    assert visitors.stop("a") is None and running.stopped
    assert visitors.current("a") is running  # its last words are still to come
    visitors.end("a", running)


def test_a_ticket_has_one_turn() -> None:
    visitors = Visitors()
    visitors.begin("a", ticket := Ticket(ASKED))
    assert visitors.take("a") is ticket and visitors.take("a") is None
    visitors.end("a", ticket)
    assert visitors.take("a") is None


@pytest.mark.parametrize("end", ["stop", "leave", "begin", "stop_all"])
def test_a_waiting_ticket_leaves_no_file(end: str, left: Callable[[], list[Path]]) -> None:
    visitors, ticket = Visitors(), Ticket(ASKED)
    visitors.begin("a", ticket)
    assert len(left()) == 1
    {
        "stop": lambda: visitors.stop("a"),
        "leave": lambda: visitors.leave("a"),
        "begin": lambda: visitors.begin("a", Ticket(ASKED)),
        "stop_all": visitors.stop_all,
    }[end]()
    assert ticket.stopped
    visitors.stop_all()
    assert left() == []


def test_a_stop_that_comes_after_the_end_leaves_no_file(pairs: Pairs, left: Callable[[], list[Path]]) -> None:
    visitors, ticket = Visitors(), Ticket(ASKED)
    visitors.begin("a", ticket)
    assert phases(follow(teller(pairs, Limits()), visitors, "a"))[-1] == "done"
    ticket.stop()
    assert left() == []


def test_a_ticket_is_stopped_from_another_process() -> None:
    ticket = Ticket(ASKED)
    copy = pickle.loads(pickle.dumps(ticket))
    assert not copy.stopped
    copy.stop()
    assert ticket.stopped
    assert pickle.loads(pickle.dumps(ticket)).stopped  # a copy brings no run back


def test_what_fails_around_a_run_is_told_on_the_page() -> None:
    def tell(ticket: Ticket) -> Iterator[tuple[str, Any]]:
        yield "message", {"run": ticket.run, "phase": "drafting", "rounds": [], "notice": None}
        raise OSError("no space left on device")

    visitors = Visitors()
    visitors.begin("a", Ticket(ASKED))
    *_, (_, last) = follow(tell, visitors, "a")
    assert last["phase"] == "failed" and last["notice"] == {"kind": "error", "text": "OSError: no space left on device"}
    assert visitors.current("a") is None


def test_a_visitor_who_left_is_told_no_more(pairs: Pairs) -> None:
    visitors = Visitors()
    visitors.begin("a", Ticket(ASKED))
    told = follow(teller(pairs, Limits()), visitors, "a")
    next(told)
    visitors.leave("a")
    assert list(told) == []


def test_programs_are_counted_among_the_waiting_and_told_why_they_are_refused(pairs: Pairs) -> None:
    gradio = pytest.importorskip("gradio")
    visitors = Visitors()
    seen: list[int] = []

    def tell(ticket: Ticket) -> Iterator[tuple[str, Any]]:
        seen.append(visitors.begin("a", Ticket(ASKED)))
        visitors.leave("a")
        yield from teller(pairs, Limits())(ticket)

    answer = answering(tell, visitors)
    assert answer("a walk to", max_new_tokens=8)["verdict"]["kind"] == "identical"
    with pytest.raises(gradio.Error, match="Type a prompt first"):
        answer("  ")
    assert seen == [1, 1] and visitors.begin("a", Ticket(ASKED)) == 0
    visitors.stop_all()
