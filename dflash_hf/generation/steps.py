"""Which processors and criteria need the sequential walk, token by token, and which one tensor operation can serve."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers.generation.logits_process import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

__all__ = ["end_of_text_ids", "length_limit", "needs_steps", "position_free"]

# They read the scores alone, row by row: neither the ids nor the place matter. Exact types: a subclass may differ.
_POSITION_FREE = frozenset(
    {
        EpsilonLogitsWarper,
        EtaLogitsWarper,
        InfNanRemoveLogitsProcessor,
        LogitNormalization,
        MinPLogitsWarper,
        SuppressTokensLogitsProcessor,
        TemperatureLogitsWarper,
        TopHLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
        TypicalLogitsWarper,
    }
)
# Their answer inside a block is known from ids and lengths (`accept.cut_at_end_of_text`, `length_limit`).
_FORESEEN = frozenset({EosTokenCriteria, MaxLengthCriteria})


def needs_steps(processors: Iterable[Any], criteria: Iterable[Any]) -> bool:
    """True when some processor or criterion must see every committed token, once each, in order."""
    return any(type(each) not in _POSITION_FREE for each in processors) or any(
        type(each) not in _FORESEEN for each in criteria
    )


def position_free(processors: Iterable[Any]) -> list[Any]:
    """Those processors that read the scores alone."""
    return [each for each in processors if type(each) in _POSITION_FREE]


def end_of_text_ids(criteria: Iterable[Any]) -> frozenset[int]:
    """All ids that end the text by these criteria."""
    return frozenset(
        token for each in criteria if type(each) is EosTokenCriteria for token in each.eos_token_id.flatten().tolist()
    )


def length_limit(criteria: Iterable[Any]) -> int | None:
    """The shortest total length at which some criterion ends the text.

    The generation config has no say: a ``MaxLengthCriteria`` of the user's takes the place of the one made from it.
    """
    return min((each.max_length for each in criteria if isinstance(each, MaxLengthCriteria)), default=None)
