"""Other readings of a drafter's files: each one value changed that a wrong file, or a wrong reader, gets wrong.

In: a drafter's config and its target. Out: configs in memory, with what the files would have to say for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from dflash_hf.checkpoints.provenance import Provenance
from dflash_hf.checkpoints.spelled import spelled
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.target.view import TargetView

__all__ = ["Alternative", "alternatives", "windows_past"]

_THETAS = (1e4, 5e5, 1e6, 1e7)
_SOURCES = {"target": "as the target scales them", "target_rows": "raw, without the target's scale"}


@dataclass(frozen=True, slots=True)
class Alternative:
    """One change: what it means in words, the field it changes, and the whole config.

    ``keys`` is what to set in config.json, by path, for the files to mean it; None where no key of their dialect does.
    """

    words: str
    field: str
    keys: dict[str, Any] | None
    config: DFlashConfig


def alternatives(
    config: DFlashConfig, view: TargetView, provenance: Provenance | None = None, positions: int | None = None
) -> list[Alternative]:
    """All readings that this drafter and this target allow.

    Args:
        config: the drafter's; it stays as it is.
        view: the target.
        provenance: of the drafter; without one, no keys are known.
        positions: of the text they are tried on; a change that no text so short shows is left out.
    """
    found = []
    for words, field, changes in _changes(config, view, positions):
        other = deepcopy(config)
        for name, value in changes.items():
            setattr(other, name, value)
        found.append(Alternative(words, field, _keys(provenance, config, other, field), other))
    return found


def windows_past(config: DFlashConfig, positions: int | None) -> list[int]:
    """Lengths of windows that a text of so many ``positions`` cannot show, where it can show none of them at all."""
    windows = {window for window in config.layer_windows if window is not None}
    out_of_reach = positions is not None and all(window >= positions + config.block_size for window in windows)
    return sorted(windows) if out_of_reach else []


def _keys(provenance: Provenance | None, now: DFlashConfig, wanted: DFlashConfig, field: str) -> dict[str, Any] | None:
    if provenance is None or not provenance.config:
        return None
    return spelled(provenance.config, provenance.tensors, now, wanted, field)


def _changes(
    config: DFlashConfig, view: TargetView, positions: int | None
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield from _taps(config, view)
    yield from _causality(config)
    windowed = any(window is not None for window in config.layer_windows)
    if windowed and not windows_past(config, positions):
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


def _causality(config: DFlashConfig) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The three rules that are written: no layer causal in the block, every layer, and z-lab's."""
    layers = len(config.layer_causal)
    tried = [list(config.layer_causal)]
    for words, rule in (
        ("a block's slots see the whole block", [False] * layers),
        ("a block's slots see only earlier slots", [True] * layers),
        (
            "a block's slots see only earlier slots on sliding layers and the whole block on full ones",
            [window is not None for window in config.layer_windows],
        ),
    ):
        if rule not in tried:
            tried.append(rule)
            yield words, "layer_causal", {"layer_causal": rule}


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
    most, all_now = config.block_size - other, config.block_size - config.first_slot
    changes: dict[str, Any] = {"first_slot": other, "num_draft_tokens": min(config.num_draft_tokens, most)}
    if config.head["kind"] == "gru":  # B - 1 drafts either way
        changes["head"] = {**config.head, "first_corrected": config.head["first_corrected"] + (1 if other else -1)}
    elif config.num_draft_tokens == all_now:
        changes["num_draft_tokens"] = most
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
