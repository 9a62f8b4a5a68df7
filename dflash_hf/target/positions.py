"""How far a block may reach before the target would read it in another way than one token after another.

In: a target's text config, the anchor's position, the length of the sequence. Out: how many tokens may be drafted.
Three kinds of target set an end: those with a table of positions, which ends; "dynamic" rotary frequencies, which
follow the longest position of a forward; and "longrope", which has one set of frequencies up to a position and another
after it (transformers, ``modeling_rope_utils.dynamic_rope_update``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["exact_until", "frequencies_change", "position_limit", "room_for_drafts"]


def exact_until(config: Any) -> int | None:
    """Tokens up to which a target attends to all of them, or None where it always does.

    Past them DeepSeek V3.2 and GLM's DSA attend to the ``index_topk`` best-scored ones; scores of exactly 0 are common
    there, and which of the equal ones is taken depends on how many tokens a forward reads.
    """
    return getattr(config, "index_topk", None)


def position_limit(config: Any) -> int | None:
    """Positions that drafts may take, or None for no end.

    A target without rotary settings looks its positions up: in a table (GPT-2, OPT), in precomputed sines (GPT-J,
    CTRL), or it has none (Bloom) and then no ``max_position_embeddings`` either. Dynamic frequencies have no end, but
    past this position every forward has frequencies of its own, and only one token a forward gives the plain text.
    """
    ropes = list(_ropes(config))
    if ropes and not any(_type_of(rope) == "dynamic" for rope in ropes):
        return None
    names = ("max_position_embeddings", "max_seq_len")  # the latter is MPT's, whose biases are built for so many
    return next((limit for name in names if (limit := getattr(config, name, None)) is not None), None)


def room_for_drafts(config: Any, position: int, length: int, held: int) -> int | None:
    """How many tokens may be drafted after an anchor at ``position``: None is no limit, 0 is plain decoding.

    Args:
        config: the target's text config.
        position: of the anchor, padding not counted.
        length: of the sequence, padding and anchor included.
        held: tokens in the target's cache.
    """
    rooms = []
    if (limit := position_limit(config)) is not None:
        rooms.append(limit - 1 - position)
    for switch in _switches(config):
        if position < switch:
            rooms.append(switch - 1 - position)
        if held <= switch:  # a longer sequence makes Phi-3 drop this cache and read everything again
            rooms.append(switch - length)
    return max(min(rooms), 0) if rooms else None


def frequencies_change(config: Any, length: int) -> bool:
    """Whether a sequence of ``length`` is read with other rotary frequencies than a short one.

    The host picks them by the longest row of a batch, so rows apart may be read otherwise than together.
    """
    limits = _switches(config)
    if any(_type_of(rope) == "dynamic" for rope in _ropes(config)) and (limit := position_limit(config)) is not None:
        limits = {*limits, limit}
    return any(length > limit for limit in limits)


def _switches(config: Any) -> set[int]:
    """Lengths at which the frequencies change, or at which Phi-3 and its kin start their cache anew."""
    found = {rope.get("original_max_position_embeddings") for rope in _ropes(config) if _type_of(rope) == "longrope"}
    found.add(getattr(config, "original_max_position_embeddings", None))
    return {int(switch) for switch in found if switch is not None}


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Rotary settings: one for all layers, or one for each kind of layer."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(settings, Mapping):
        if getattr(config, "rope_theta", None) is not None:  # a config in the style of transformers 4
            yield {}
        return
    nested = [value for value in settings.values() if isinstance(value, Mapping)]
    yield from nested or [settings]


def _type_of(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")
