"""Rotary positions: the spellings of two generations of transformers -> one ``rope_parameters`` mapping.

transformers 4 wrote ``rope_theta`` and ``rope_scaling`` side by side, transformers 5 writes ``rope_parameters``; some
writers write both. A drafter rotates its whole head in half-split (NeoX) order, whatever its target does; the few
dialects that rotate a part of it, or pairs side by side, say so to these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.fields import Fields
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["read_interleaved", "read_rope", "write_rope"]

# What each kind needs besides rope_theta, then what it may carry. Kinds whose frequencies move with the length of the
# text (dynamic, longrope) cannot be used with keys that are rotated once and kept.
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor",),
        (
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ),
    ),
}
_LAYER_TYPES = {"full_attention", "sliding_attention"}


def read_rope(
    fields: Fields, max_positions: int, default_theta: float | None = None, *, partial: bool = False
) -> dict[str, Any]:
    """The drafter's ``rope_parameters``.

    Args:
        fields: the config.
        max_positions: ``max_position_embeddings``, YaRN's original length where the file does not give one.
        default_theta: the writer's class default; None means that a missing theta is an error, never a guess.
        partial: ``partial_rotary_factor`` is this dialect's own; elsewhere it leaked from a target's config.

    Raises:
        CheckpointError: no theta, an unknown kind, or two spellings that disagree.
        UnsupportedCheckpointError: layers with different positions.
    """
    new, old = _new_spelling(fields), _old_spelling(fields)
    if new and old and (clash := _clash(new, old)):
        raise CheckpointError(f"config.json gives two positions: rope_parameters says {clash[0]}, {clash[1]}")
    rope = {**old, **new}
    if "rope_theta" not in rope:
        if default_theta is None:
            raise CheckpointError(
                "config.json has neither rope_parameters.rope_theta nor rope_theta, and guessing it ruins acceptance "
                "without an error; add the value the drafter was trained with (usually the target's)."
            )
        rope["rope_theta"] = fields.filled("rope_theta", default_theta)
    return _checked(fields, rope, max_positions, partial)


def read_interleaved(fields: Fields, *, known: bool) -> bool:
    """Whether pairs to rotate stand side by side.

    Args:
        fields: the config.
        known: drafters of this dialect are known that do; elsewhere it is refused, since nobody described one.
    """
    said = {name: fields.flag(name, None, drafter=True) for name in ("rope_is_neox_style", "is_neox_style")}
    given = {value for value in said.values() if value is not None}
    if len(given) > 1:
        raise CheckpointError(f"config.json contradicts itself: {said}")
    interleaved = given == {False}
    if interleaved and not known:
        raise UnsupportedCheckpointError(
            "the drafter rotates interleaved pairs (rope_is_neox_style false); of this dialect no such drafter is "
            "described, and this version reads half-split rotary only. llama.cpp and mlx-vlm run such drafters."
        )
    return interleaved


def write_rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Both spellings, so that readers of either generation find the same positions."""
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return {
        "rope_parameters": dict(rope),
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope["rope_type"] == "default" else scaling,
    }


def _new_spelling(fields: Fields) -> dict[str, Any]:
    value = fields.top.get("rope_parameters")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise fields.wrong("rope_parameters", value, "a JSON object")
    per_layer = {key: part for key, part in value.items() if key in _LAYER_TYPES}
    if not per_layer:
        return _kind_named(value)
    used = set(fields.top.get("layer_types") or ["full_attention"])
    parts = [_kind_named(part) for key, part in per_layer.items() if key in used and isinstance(part, Mapping)]
    if not parts or any(part != parts[0] for part in parts):
        raise UnsupportedCheckpointError(
            f"rope_parameters gives its layer types different positions ({value}); z-lab's drafters have one rotary "
            "for all layers, and so has this version."
        )
    return parts[0]


def _old_spelling(fields: Fields) -> dict[str, Any]:
    theta, scaling = fields.top.get("rope_theta"), fields.top.get("rope_scaling")
    rope: dict[str, Any] = {}
    if scaling is not None:
        if not isinstance(scaling, Mapping):
            raise fields.wrong("rope_scaling", scaling, "a JSON object or null")
        rope = _kind_named(scaling)
    if theta is not None:
        rope["rope_theta"] = theta
    return rope


def _kind_named(rope: Mapping[str, Any]) -> dict[str, Any]:
    """The kind under ``rope_type`` (older files: ``type``); null entries dropped."""
    named = {key: value for key, value in rope.items() if value is not None and key not in ("type", "rope_type")}
    kind = rope.get("rope_type") or rope.get("type")
    return {"rope_type": kind, **named} if kind else named


def _clash(new: Mapping[str, Any], old: Mapping[str, Any]) -> tuple[str, str] | None:
    for key in sorted(new.keys() & old.keys()):
        if new[key] != old[key]:
            where = "rope_theta" if key == "rope_theta" else f"rope_scaling.{key}"
            return f"{key}={new[key]!r}", f"{where} says {old[key]!r}"
    if old.get("rope_type") is not None and "rope_type" not in new:
        return "no rope_type", f"rope_scaling says {old['rope_type']!r}"
    return None


def _checked(fields: Fields, rope: dict[str, Any], max_positions: int, partial: bool) -> dict[str, Any]:
    theta = rope.pop("rope_theta")
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or theta <= 0:
        raise fields.wrong("rope_theta", theta, "a positive number")
    kind = rope.pop("rope_type", "default")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CheckpointError(
            f"config.json: rope_type is {kind!r}; drafters have {', '.join(map(repr, _KINDS))} (keys are rotated once "
            "and kept, so frequencies that move with the length cannot be used)"
        )
    needed, optional = _KINDS[kind]
    if missing := [key for key in needed if key not in rope]:
        raise CheckpointError(f"config.json: rope_type {kind!r} needs {', '.join(missing)}")
    if kind == "yarn" and "original_max_position_embeddings" not in rope:
        rope["original_max_position_embeddings"] = fields.filled(
            "rope original_max_position_embeddings", max_positions, "transformers takes max_position_embeddings"
        )
    _note_leaks(fields, rope, {*needed, *optional}, partial)
    known = {key: rope[key] for key in (*needed, *optional) if key in rope}
    if partial and (part := _part(fields, rope)) != 1:
        known["partial_rotary_factor"] = part
    return {"rope_type": kind, "rope_theta": float(theta), **known}


def _part(fields: Fields, rope: Mapping[str, Any]) -> float:
    """How much of a head is rotated: the first part of it, an even number of dimensions."""
    inside, beside = rope.get("partial_rotary_factor"), fields.top.get("partial_rotary_factor")
    if None not in (inside, beside) and inside != beside:
        raise CheckpointError(f"config.json gives two values of partial_rotary_factor: {inside} and {beside}")
    part = beside if inside is None else inside
    if part is None:
        return 1.0
    if isinstance(part, bool) or not isinstance(part, (int, float)) or not 0 < part <= 1:
        raise fields.wrong("partial_rotary_factor", part, "a number above 0 and at most 1")
    head = fields.top.get("head_dim")
    if isinstance(head, int) and (int(head * part) < 2 or int(head * part) % 2):
        raise CheckpointError(
            f"config.json: partial_rotary_factor {part} of head_dim {head} is {int(head * part)}; an even number of "
            "dimensions is rotated"
        )
    return float(part)


def _note_leaks(fields: Fields, rope: Mapping[str, Any], known: set[str], partial: bool) -> None:
    """Keys that came over from the target's config and were never used in training."""
    part = rope.get("partial_rotary_factor", fields.top.get("partial_rotary_factor"))
    if not partial and part not in (None, 1, 1.0):
        fields.notes.append(
            f"partial_rotary_factor={part} not used: it leaked from the target's config; these drafters were "
            "trained with full rotary"
        )
    if leaked := sorted(set(rope) - known - {"partial_rotary_factor"}):
        fields.notes.append(f"rope keys not used: {', '.join(leaked)} (a drafter's positions are one-dimensional)")
