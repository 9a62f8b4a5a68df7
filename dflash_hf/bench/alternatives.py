"""Other readings of a drafter's files: each one value changed that a wrong file, or a wrong reader, gets wrong.

In: a drafter's config and its target. Out: configs in memory, with the key of the files that would say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from dflash_hf.config import DFlashConfig
from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.target.view import TargetView

__all__ = ["Alternative", "alternatives"]

_THETAS = (1e4, 5e5, 1e6, 1e7)
_KEYS = {  # field -> the key most files have for it
    "target_layer_ids": "target_layer_ids",
    "last_tap": "target_layer_ids",
    "layer_causal": "is_causal",
    "layer_windows": "layer_types",
    "rope_parameters": "rope_parameters.rope_theta",
    "rope_interleaved": "rope_is_neox_style",
    "first_slot": "shift_label",
    "embedding": "dflash_config.block_embedding",
    "embedding_scale": "dflash_config.input_embedding_scale",
}
_SOURCES = {"target": "as the target scales them", "target_rows": "raw, without the target's scale"}


@dataclass(frozen=True, slots=True)
class Alternative:
    """One change: what it means in words, the field it changes, the key of the files, and the whole config."""

    words: str
    field: str
    key: str
    config: DFlashConfig


def alternatives(config: DFlashConfig, view: TargetView, origins: Mapping[str, str] | None = None) -> list[Alternative]:
    """All readings that this drafter and this target allow.

    Args:
        config: the drafter's; it stays as it is.
        view: the target.
        origins: where the values are from (``Provenance.origins``), so that the key named is the file's own.
    """
    found = []
    for words, field, changes in _changes(config, view):
        other = deepcopy(config)
        for name, value in changes.items():
            setattr(other, name, value)
        found.append(Alternative(words, field, _key(field, origins or {}), other))
    return found


def _key(field: str, origins: Mapping[str, str]) -> str:
    origin = origins.get(field, "")
    is_key = origin and not any(mark in origin for mark in (" ", ":")) and origin not in ("tensors", "derived")
    return origin if is_key else _KEYS[field]


def _changes(config: DFlashConfig, view: TargetView) -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield from _taps(config, view)
    flipped = [not causal for causal in config.layer_causal]
    rule = "a block's slots see " + ("the whole block" if any(config.layer_causal) else "only earlier slots")
    yield rule, "layer_causal", {"layer_causal": flipped}
    if any(window is not None for window in config.layer_windows):
        yield "no windows", "layer_windows", {"layer_windows": [None] * len(config.layer_windows)}
    theta = config.rope_parameters["rope_theta"]
    for other in _THETAS:
        if other != theta:
            rope = {"rope_parameters": {**config.rope_parameters, "rope_theta": other}}
            yield f"rope_theta {other:.0e} in the place of {theta:.0e}", "rope_parameters", rope
    order = "half-split" if config.rope_interleaved else "interleaved"
    yield f"{order} rotary pairs", "rope_interleaved", {"rope_interleaved": not config.rope_interleaved}
    yield from _slots(config)
    yield from _embeddings(config, view)


def _taps(config: DFlashConfig, view: TargetView) -> Iterator[tuple[str, str, dict[str, Any]]]:
    ids, last = config.target_layer_ids, view.num_layers - 1
    for step, words in ((1, "taps one layer higher"), (-1, "taps one layer lower")):
        moved = [index + step for index in ids]
        if min(moved) >= -1 and max(moved) <= last:
            yield f"{words} ({moved})", "target_layer_ids", {"target_layer_ids": moved}
    if last in ids:
        other = "raw" if config.last_tap == "normed" else "normed"
        when = "before" if other == "raw" else "after"
        yield f"the last layer's tap from {when} the final norm", "last_tap", {"last_tap": other}


def _slots(config: DFlashConfig) -> Iterator[tuple[str, str, dict[str, Any]]]:
    other = 1 - config.first_slot
    most = config.block_size - other
    changes: dict[str, Any] = {"first_slot": other, "num_draft_tokens": min(config.num_draft_tokens, most)}
    if config.head["kind"] == "gru":
        changes["head"] = {**config.head, "first_corrected": config.head["first_corrected"] + (1 if other else -1)}
    place = "their own place" if other else "the place after their own"
    yield f"slots predict {place}", "first_slot", changes


def _embeddings(config: DFlashConfig, view: TargetView) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if config.embedding == "own":
        scale = config.hidden_size**0.5
        other = 1.0 if config.embedding_scale != 1.0 else scale
        yield f"embeddings times {other:g}", "embedding_scale", {"embedding_scale": other}
        return
    ids = torch.tensor([[config.mask_token_id]])
    own = view.embed(ids, config.embedding)
    for source, words in _SOURCES.items():
        try:
            other_rows = view.embed(ids, source)
        except UnsupportedTargetError:  # this target cannot give them, so no drafter of its own takes them
            continue
        if not torch.equal(own, other_rows):
            yield f"embeddings {words}", "embedding", {"embedding": source}
