"""The answer as it comes: a streamer that shows each round's spans.

In: transformers' streamer calls (the prompt, then the prefill's token) and each finished round. Out: text, and at the
end the exact spans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dflash_hf.cli.marks import Marks
from dflash_hf.streaming import Decode, SpanStream, split_text
from dflash_hf.trace import RoundRecord, Trace

__all__ = ["LiveAnswer", "Span", "spans_of"]


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the answer. ``kind`` is ``"prefill"``, ``"accepted"`` or ``"bonus"``; round 0 is the prefill."""

    kind: str
    round: int
    text: str


class LiveAnswer:
    """Give it to ``generate`` as ``streamer``, and its ``on_round`` as the option of that name.

    Args:
        decode: ids to text.
        marks: how accepted spans look.
        write: where text goes, with no newline added.
    """

    def __init__(self, decode: Decode, marks: Marks, write: Callable[[str], None]) -> None:
        self._stream, self._marks, self._write = SpanStream(decode), marks, write
        self._puts = 0

    def put(self, value: Any) -> None:
        """The host's calls: first the prompt, then the prefill's token; later ones are the rounds', shown by round."""
        self._puts += 1
        if self._puts == 2:
            self._write(self._marks.own(self._stream.push(value.flatten().tolist())))

    def end(self) -> None:
        """The host's last call."""
        self._write(self._marks.own(self._stream.finish()) + "\n")

    def on_round(self, record: RoundRecord) -> None:
        accepted = self._marks.accepted(self._stream.push(record.drafted[: record.accepted]))
        own = [] if record.bonus is None else [record.bonus]
        self._write(accepted + self._marks.own(self._stream.push(own)))

    @property
    def exact(self) -> bool:
        """After the end: whether what was shown is the answer's text."""
        return self._stream.exact


def spans_of(trace: Trace, decode: Decode) -> list[Span]:
    """The finished answer in spans; their texts, joined, are the decoded answer."""
    pieces: list[tuple[str, int, list[int]]] = []
    if trace.first_token is not None:
        pieces.append(("prefill", 0, [trace.first_token]))
    for number, record in enumerate(trace.rounds, start=1):
        pieces.append(("accepted", number, record.drafted[: record.accepted]))
        pieces.append(("bonus", number, [] if record.bonus is None else [record.bonus]))
    texts = split_text(decode, [ids for _, _, ids in pieces])
    return [Span(kind, number, text) for (kind, number, _), text in zip(pieces, texts, strict=True) if text]
