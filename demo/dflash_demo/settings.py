"""What a visitor may ask for, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dflash_hf.bench.answers import Sampling
from dflash_hf.bench.pair import DTYPES
from dflash_hf.errors import OptionsError

__all__ = ["CAPS", "THINKING", "Limits", "Request"]

CAPS: dict[str, int | None] = {"the whole block": None, **{str(cap): cap for cap in range(16)}}
THINKING = {"the template's own": None, "on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may cost. Seconds are of each run, drafted and plain."""

    prompt_characters: int = 20_000
    prompt_tokens: int = 4_096
    new_tokens: int = 1_024
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Request:
    """One run as asked for; see :meth:`checked`."""

    prompt: str
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    draft_cap: int | None = None  # most tokens drafted a round; None: the whole block
    dtype: str = "auto"
    plain: bool = True  # also run without the drafter
    thinking: bool | None = None
    probabilities: bool = True

    def checked(self, limits: Limits) -> Request:
        """Itself.

        Raises:
            OptionsError: a value is out of range; the message says which and what may be.
        """
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            raise OptionsError("Type a prompt first, or pick an example.")
        if len(self.prompt) > limits.prompt_characters:
            raise OptionsError(
                f"The prompt has {len(self.prompt):,} characters; this page takes {limits.prompt_characters:,}."
            )
        _between("Maximum tokens", self.max_new_tokens, 1, limits.new_tokens, whole=True)
        _between("Temperature", self.temperature, 0, 5)
        _between("Top-p", self.top_p, 0.01, 1)
        _between("Seed", self.seed, 0, 2**31 - 1, whole=True)
        if self.draft_cap is not None:
            _between("Draft cap", self.draft_cap, 0, 1024, whole=True)
        if self.dtype not in DTYPES:
            raise OptionsError(f"dtype is one of {', '.join(DTYPES)}, not {self.dtype!r}.")
        return self

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.max_new_tokens, self.temperature, self.top_p, self.seed)


def _between(name: str, value: Any, low: float, high: float, *, whole: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        raise OptionsError(f"{name} is between {low:,} and {high:,}, not {value!r}.")
    if whole and not isinstance(value, int):
        raise OptionsError(f"{name} is a whole number, not {value!r}.")
