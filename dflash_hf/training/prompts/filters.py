"""Which prompts are kept, and why the others are not.

Pure functions say what is wrong with a text; :class:`Screen` remembers what it has let through and counts the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from dflash_hf.errors import OptionsError, TrainingError
from dflash_hf.training.prompts.overlap import HeldOut, NearDuplicates, normalised
from dflash_hf.training.prompts.prompts import Prompt

__all__ = ["Limits", "Screen", "is_repetitive"]

_PIECE = re.compile(r"\w+|[^\w\s]")
_RUN = re.compile(r"(\w)\1{19}")  # twenty times the same letter or digit
_FEWEST = 12  # 4-grams; a shorter text repeats itself too easily


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a prompt; None is no bound. Tokens are those of the whole prompt in the target's chat template.

    Args:
        min_chars: fewest characters of the last user turn.
        max_chars: most characters of all turns together.
        min_tokens: fewest tokens.
        max_tokens: most tokens.
        near_duplicates: share of common word 5-grams (Jaccard) from which on a prompt counts as a duplicate; above 1
            none does.

    Raises:
        OptionsError: bounds that nothing can meet.
    """

    min_chars: int = 1
    max_chars: int | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    near_duplicates: float = 0.7

    def __post_init__(self) -> None:
        for unit, low, high in (
            ("characters", self.min_chars, self.max_chars),
            ("tokens", self.min_tokens, self.max_tokens),
        ):
            if low is not None and high is not None and low > high:
                raise OptionsError(f"prompts of at least {low} and at most {high} {unit}: there are none")
        if not self.near_duplicates > 0:
            raise OptionsError(
                f"near duplicates are told by a share above 0, got {self.near_duplicates}; 2 keeps all but exact ones"
            )

    @property
    def counts_tokens(self) -> bool:
        return self.min_tokens is not None or self.max_tokens is not None


def is_repetitive(text: str) -> bool:
    """Whether more than half of a text's runs of four words or signs have stood in it before.

    >>> is_repetitive("one two three four five " * 4), is_repetitive("a" * 30), is_repetitive("Add 3 to 4. " * 2)
    (True, True, False)
    """
    pieces = _PIECE.findall(text)
    runs = [tuple(pieces[start : start + 4]) for start in range(len(pieces) - 3)]
    return bool(_RUN.search(text)) or (len(runs) >= _FEWEST and 2 * len(set(runs)) < len(runs))


class Screen:
    """Lets prompts through one by one, each only once. ``dropped`` counts the others by reason.

    Args:
        limits: bounds.
        held_out: texts that must stay unseen; all turns of a prompt are compared with them.
        tokens: length of a prompt in tokens; needed when ``limits`` has bounds in tokens. A TrainingError of it (the
            chat template refuses the turns) drops the prompt.
    """

    def __init__(
        self, limits: Limits, held_out: HeldOut | None = None, tokens: Callable[[Prompt], int] | None = None
    ) -> None:
        assert tokens is not None or not limits.counts_tokens
        self.dropped: Counter[str] = Counter()
        self._limits, self._held_out, self._tokens = limits, held_out or HeldOut(), tokens
        self._seen: set[str] = set()
        self._near = NearDuplicates(limits.near_duplicates)

    def admit(self, prompt: Prompt) -> bool:
        reason = self._flaw(prompt) or self._outside(prompt) or self._given_away(prompt) or self._known(prompt)
        if reason:
            self.dropped[reason] += 1
        return not reason

    def _flaw(self, prompt: Prompt) -> str | None:
        if not prompt.text.strip():
            return "empty"
        if any("\ufffd" in message["content"] for message in prompt.messages):
            return "broken characters"
        return "repetitive" if is_repetitive(prompt.text) else None

    def _outside(self, prompt: Prompt) -> str | None:
        limits = self._limits
        if len(prompt.text) < limits.min_chars:
            return f"under {limits.min_chars} characters"
        if limits.max_chars is not None and sum(len(turn["content"]) for turn in prompt.messages) > limits.max_chars:
            return f"over {limits.max_chars} characters"
        if not limits.counts_tokens or self._tokens is None:
            return None
        try:
            length = self._tokens(prompt)
        except TrainingError:
            return "refused by the chat template"
        if limits.min_tokens is not None and length < limits.min_tokens:
            return f"under {limits.min_tokens} tokens"
        return (
            f"over {limits.max_tokens} tokens" if limits.max_tokens is not None and length > limits.max_tokens else None
        )

    def _given_away(self, prompt: Prompt) -> str | None:
        shown = any(self._held_out.given_away_by(turn["content"]) for turn in prompt.messages)
        return "held out for evaluation" if shown else None

    def _known(self, prompt: Prompt) -> str | None:
        before = "\n".join(normalised(turn["content"]) for turn in prompt.messages[:-1])
        key = f"{before}\n{normalised(prompt.text)}"
        if key in self._seen:
            return "duplicate"
        if self._limits.near_duplicates <= 1 and not self._near.admit(prompt.text, before):
            return "near duplicate"
        self._seen.add(key)
        return None
