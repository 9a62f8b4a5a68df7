"""The one door for options of a drafted call: ``generate(..., dflash=DFlashOptions(...))``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from dflash_hf.errors import OptionsError
from dflash_hf.trace import RoundRecord

__all__ = ["DFlashOptions"]

_PROPOSALS = ("auto", "argmax", "sampled")
_PACKING = ("auto", "always", "never")


@dataclass(frozen=True, slots=True)
class DFlashOptions:
    """How to draft. Nothing here changes the text, only how soon it comes and what is written down.

    Args:
        max_draft_tokens: most tokens drafted in a round; ``None`` means all the drafter's block offers. 0 is plain
            decoding through the same loop. ``num_assistant_tokens`` of ``generate``, when set, is the same cap.
        proposals: what is proposed when sampling. ``"argmax"``: the likeliest token of each slot, kept with the
            probability the target gives it. ``"sampled"``: drawn from the drafter and kept by the ratio rule. Both
            leave the target's distribution exact. ``"auto"`` draws where a slot knows what was drawn before it, and
            takes the likeliest where slots are independent: there that keeps more.
        trace_probabilities: also record the target's and the drafter's probability of every drafted token, and the
            target's of its own tokens. Costs a softmax over the vocabulary per token.
        least_confidence: a drafter with a confidence head (DSpark) ends its draft before the first token that it
            expects to be reached and kept with less than this probability; 0 never does.
        draft_window: how many of the newest tokens the drafter sees, the one it drafts after included; ``None``: as
            many as its layers' own windows let it see. A layer with a smaller window keeps it. Bounds the drafter's
            memory and time in a long text. Positions stay those of the whole text, and no first tokens are kept.
        pack_weights: whether linear layers in float32 on a CPU read copies of their weights that suit a block's few
            rows, which makes a round there about twice as fast for twice the memory of the weights. ``"auto"``: where
            the weights exceed the processor's caches and the copies take at most a quarter of the free memory.
        on_round: called with each finished ``RoundRecord``, after its tokens were streamed.

    Raises:
        OptionsError: a value is out of range or of the wrong type.
    """

    max_draft_tokens: int | None = None
    proposals: Literal["auto", "argmax", "sampled"] = "auto"
    trace_probabilities: bool = False
    least_confidence: float = 0.0
    draft_window: int | None = None
    pack_weights: Literal["auto", "always", "never"] = "auto"
    on_round: Callable[[RoundRecord], None] | None = None

    def __post_init__(self) -> None:
        cap = self.max_draft_tokens
        if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 0):
            raise OptionsError(f"max_draft_tokens must be a whole number of at least 0 or None, got {cap!r}")
        if self.proposals not in _PROPOSALS:
            raise OptionsError(f"proposals must be one of {', '.join(_PROPOSALS)}, got {self.proposals!r}")
        least = self.least_confidence
        if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least <= 1:
            raise OptionsError(f"least_confidence must be a probability, got {least!r}")
        window = self.draft_window
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise OptionsError(f"draft_window must be a whole number of at least 1 or None, got {window!r}")
        if self.pack_weights not in _PACKING:
            raise OptionsError(f"pack_weights must be one of {', '.join(_PACKING)}, got {self.pack_weights!r}")
        if self.on_round is not None and not callable(self.on_round):
            raise OptionsError(f"on_round must be callable, got {self.on_round!r}")

    @classmethod
    def of(cls, value: DFlashOptions | Mapping[str, Any] | None) -> DFlashOptions:
        """Options from what a user passed: an instance, a mapping (as a ``GenerationConfig`` stores it) or nothing."""
        if value is None:
            return cls()
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise OptionsError(f"dflash must be a DFlashOptions or a mapping of its fields, got {value!r}")
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(value) - known):
            raise OptionsError(f"dflash has no option {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        return cls(**value)
