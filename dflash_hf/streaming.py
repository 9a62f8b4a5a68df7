"""Token ids to text spans, while they come: which characters each round added.

Torch-free, so that a terminal and a web page use the same rule: a character whose bytes are split over two rounds
belongs to the later one, and the spans, joined, are exactly ``decode(all ids)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os.path import commonprefix

__all__ = ["SpanStream", "decoder_of", "split_text"]

Decode = Callable[[list[int]], str]

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what decoders show for bytes that are no character yet


def decoder_of(tokenizer: object, *, skip_special_tokens: bool = True) -> Decode:
    """``decode`` of a transformers tokenizer with the settings under which text only ever grows at its end."""

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(  # type: ignore[attr-defined]
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    return decode


class SpanStream:
    """Incremental decoding: ``push`` each round's ids, show what comes back, ``finish`` once.

    Only the last rounds are decoded again, so a long answer costs no more per round than a short one.

    >>> stream = SpanStream(lambda ids: bytes(ids).decode(errors="replace"))
    >>> stream.push([72, 105, 0xC3]), stream.push([0xA9, 33]), stream.finish()
    ('Hi', 'é!', '')
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._start = 0  # ids before this are never decoded again
        self._shown = ""  # text of ids[start:] that was already given out
        self._given: list[str] = []

    def push(self, ids: Iterable[int]) -> str:
        """The text these ids complete; bytes of an unfinished character wait for the next call."""
        before = len(self._ids)
        self._ids.extend(ids)
        text = self._decode(self._ids[self._start :])
        whole = text.rstrip(_UNFINISHED)
        if len(whole) < len(self._shown):
            return ""
        span, self._shown = whole[len(self._shown) :], whole
        self._given.append(span)
        if whole == text and before > self._start:
            self._move(before)
        return span

    def finish(self) -> str:
        """What is still held back."""
        rest = self._decode(self._ids)[len(self.text) :]
        self._given.append(rest)
        return rest

    @property
    def text(self) -> str:
        """All that was given out."""
        return "".join(self._given)

    @property
    def exact(self) -> bool:
        """After ``finish``: whether what was given out is what the ids decode to as a whole.

        False only for a tokenizer whose decoder rewrites text it already gave (byte fallback after invalid bytes).
        """
        return self.text == self._decode(self._ids)

    def _move(self, start: int) -> None:
        """Forget ids before ``start``. The last push stays as context: decoders treat a text's beginning apart.

        Not where it begins inside a character, and not where it shows nothing (special tokens only).
        """
        shown = self._decode(self._ids[start:])
        if shown and _UNFINISHED not in shown and self._shown.endswith(shown):
            self._start, self._shown = start, shown


def split_text(decode: Decode, rounds: Sequence[Sequence[int]]) -> list[str]:
    """The same spans for a finished answer, one a round, for any decoder: joined they are ``decode(all ids)``.

    Args:
        decode: ids to text.
        rounds: token ids of each round, in order.
    """
    ids = [token for part in rounds for token in part]
    text, spans, end, count = decode(ids), [], 0, 0
    for part in rounds[:-1]:
        count += len(part)
        known = commonprefix([decode(ids[:count]).rstrip(_UNFINISHED), text])
        reached = max(end, len(known))
        spans.append(text[end:reached])
        end = reached
    return [*spans, text[end:]] if rounds else []
