"""How alike two texts are: words, word n-grams, near duplicates, and texts that must stay unseen.

Words are runs of letters and digits, case folded; a character of a script without spaces is a word of its own.
Punctuation and white space do not count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

__all__ = ["HeldOut", "NearDuplicates", "grams", "normalised", "words"]

_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # kana, Han, Hangul
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")

_LONG = 13  # words in common that give an evaluation prompt away, as in GPT-3's decontamination (arXiv 2005.14165, C)
_SHORT = 8  # shorter evaluation prompts are protected as a whole only: a few common words prove nothing


def normalised(text: str) -> str:
    """Case folded, every run of white space one blank.

    >>> normalised("  What  IS\\nthis?")
    'what is this?'
    """
    return " ".join(text.casefold().split())


def words(text: str) -> list[str]:
    """
    >>> words("Don't add 3.5, 你好")
    ['don', 't', 'add', '3', '5', '你', '好']
    """
    return _WORD.findall(text.casefold())


def grams(found: Sequence[str], size: int) -> frozenset[int]:
    """Hashes of the runs of ``size`` words (within this process only); of a shorter text, of all its words."""
    if not found:
        return frozenset()
    last = max(1, len(found) - size + 1)
    return frozenset(hash(tuple(found[start : start + size])) for start in range(last))


class NearDuplicates:
    """Remembers texts and tells which new one is nearly one of them: exact Jaccard index of word 5-grams.

    A set with an index of at least t shares ceil(t |x|) members with x, so it has one of any |x| - ceil(t |x|) + 1 of
    them. Only so many are looked up, the rarest: "Write a Python function that" brings up nothing.

    Args:
        threshold: index from which on a text is a near duplicate, above 0 and at most 1.
    """

    def __init__(self, threshold: float, size: int = 5) -> None:
        self.threshold, self._size = threshold, size
        self._known: list[frozenset[int]] = []
        self._index: dict[int, list[int]] = {}

    def admit(self, text: str, context: str = "") -> bool:
        """Remember the text unless it nearly is one remembered before; texts of another context are others."""
        mine = grams(words(text), self._size)
        if context:
            mine = frozenset(hash((context, gram)) for gram in mine)
        rarest_first = sorted(mine, key=lambda gram: len(self._index.get(gram, ())))
        looked_up = rarest_first[: len(mine) - math.ceil(self.threshold * len(mine)) + 1]
        candidates = {number for gram in looked_up for number in self._index.get(gram, ())}
        if any(self._near(mine, self._known[number]) for number in candidates):
            return False
        for gram in mine:
            self._index.setdefault(gram, []).append(len(self._known))
        self._known.append(mine)
        return True

    def _near(self, mine: frozenset[int], other: frozenset[int]) -> bool:
        fewer, more = sorted((len(mine), len(other)))
        if fewer < self.threshold * more:
            return False
        common = len(mine & other)
        return common >= self.threshold * (fewer + more - common)


class HeldOut:
    """Evaluation texts that no training prompt may give away.

    A text gives one away when both have the same words, or share a run of 13 words. An evaluation text of 8 to 12
    words counts when all of it stands in the other.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._whole: set[str] = set()
        self._grams: dict[int, set[int]] = {}
        for text in texts:
            found = words(text)
            self._whole.add(_key(text, found))
            if len(found) >= _SHORT:
                size = min(_LONG, len(found))
                self._grams.setdefault(size, set()).update(grams(found, size))

    def __len__(self) -> int:
        return len(self._whole)

    def given_away_by(self, text: str) -> bool:
        found = words(text)
        if _key(text, found) in self._whole:
            return True
        return any(len(found) >= size and not held.isdisjoint(grams(found, size)) for size, held in self._grams.items())


def _key(text: str, found: list[str]) -> str:
    return " ".join(found) or normalised(text)
