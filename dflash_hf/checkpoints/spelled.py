"""How a drafter's own files would say another value: the keys of config.json to set, in the dialect's own words.

In: a surveyed checkpoint, and a config with one field changed. Out: path -> value, or None where no key says it. What
is named was tried: the files, read again with it, give the wanted config.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.nested_keys import BLOCKS
from dflash_hf.checkpoints.origins import FIELDS
from dflash_hf.checkpoints.translate import translate
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError

__all__ = ["applied", "spelled"]

Changes = dict[str, Any]  # path in config.json, parts joined by dots -> value; null takes a key out
Config = Mapping[str, Any]

_LAYER = "transformer_layer_config"  # where speculators has the body's keys
_HOST_IDS = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
_CAUSAL = ("is_causal", "causal")
_NOT_DRAFTING = ("target_name",)


def spelled(
    config: Config, tensors: TensorTable, now: DFlashConfig, wanted: DFlashConfig, field: str
) -> Changes | None:
    """What to set in config.json for the files to mean ``wanted``.

    Args:
        config, tensors: of the files; they stay as they are.
        now: what they are read as.
        wanted: ``now`` with ``field``, and what hangs on it, changed.
        field: one of ``DFlashConfig``'s.
    """
    before, now_, wanted_ = (_meaning(each) for each in (translate(config, tensors).reading.config, now, wanted))
    changed = {key for key in wanted_ if wanted_[key] != now_[key]}
    if not changed or any(before[key] != now_[key] for key in changed):
        return None  # what is in memory is not what the files say
    meant = before | {key: wanted_[key] for key in changed}
    for changes in _CANDIDATES.get(field, _none)(config, wanted):
        if changes and _reads(applied(config, changes), tensors) == meant:
            return changes
    return None


def applied(config: Config, changes: Changes) -> dict[str, Any]:
    """A copy of ``config`` with every path set; null removes the key.

    >>> applied({"a": {"b": 1}, "c": 2}, {"a.b": 3, "c": None})
    {'a': {'b': 3}}
    """
    made: dict[str, Any] = json.loads(json.dumps(config))
    for path, value in changes.items():
        *parents, key = path.split(".")
        inside = made
        for parent in parents:
            inside = inside[parent]
        if value is None:
            inside.pop(key, None)
        else:
            inside[key] = value
    return made


def _reads(config: Config, tensors: TensorTable) -> dict[str, Any] | None:
    """What a changed config means; None where the reader of its dialect refuses it."""
    try:
        return _meaning(translate(config, tensors).reading.config)
    except CheckpointError:  # the answer: so these files cannot say it
        return None


def _meaning(config: DFlashConfig) -> dict[str, Any]:
    meaning = {field: getattr(config, field) for field in FIELDS if field not in _NOT_DRAFTING}
    if not any(config.layer_windows):
        meaning["window_rule"] = None  # of no window
    return meaning


def _stated(config: Config, values: Mapping[str, Any]) -> Changes:
    """Every place where one of these keys has a value, with its new one."""
    found: Changes = {}
    for scope in ("", *BLOCKS, _LAYER):
        inside = config.get(scope) if scope else config
        if isinstance(inside, Mapping):
            prefix = f"{scope}." if scope else ""
            found |= {f"{prefix}{key}": value for key, value in values.items() if inside.get(key) is not None}
    return found


def _set(config: Config, key: str, value: Any, scope: str = "") -> Changes:
    """The key where it stands; where it is missing, added to ``scope`` if the files have that."""
    prefix = f"{scope}." if isinstance(config.get(scope), Mapping) else ""
    return _stated(config, {key: value}) or {f"{prefix}{key}": value}


def _taps(config: Config, wanted: DFlashConfig) -> Iterator[Changes]:
    ids = wanted.target_layer_ids
    host = [index + 1 for index in ids]
    yield _stated(config, {"target_layer_ids": ids, **dict.fromkeys(_HOST_IDS, host)})
    yield _set(config, "target_layer_ids", ids, BLOCKS[0])


def _causality(config: Config, wanted: DFlashConfig) -> Iterator[Changes]:
    if len(set(wanted.layer_causal)) == 1:
        causal = wanted.layer_causal[0]
        every = _stated(config, dict.fromkeys(_CAUSAL, causal)) or {_CAUSAL[0]: causal}
        head = _set(config, "causal_head", causal, BLOCKS[0])
        yield from (every, head, every | head, _set(config, "sliding_window_non_causal", not causal))
    else:  # by the kind of the layers
        yield _stated(config, dict.fromkeys(_CAUSAL))
        yield _stated(config, dict.fromkeys((*_CAUSAL, "causal_head")))
        yield _set(config, "sliding_window_non_causal", False)


def _windows(config: Config, wanted: DFlashConfig) -> Iterator[Changes]:
    full = _set(config, "layer_types", ["full_attention"] * wanted.num_hidden_layers, _LAYER)
    all_swa = _stated(config, {"use_swa": False})
    causal = wanted.layer_causal[0]
    said = _stated(config, dict.fromkeys(_CAUSAL, causal)) or {_CAUSAL[0]: causal}
    yield from (all_swa, full, all_swa | full, full | said, all_swa | full | said)


def _rope(config: Config, wanted: DFlashConfig) -> Iterator[Changes]:
    theta = wanted.rope_parameters["rope_theta"]
    layer = config.get(_LAYER)
    scope, body = (f"{_LAYER}.", layer) if isinstance(layer, Mapping) else ("", config)
    yield dict.fromkeys(_thetas(body, scope), theta) or {f"{scope}rope_theta": theta}


def _thetas(inside: Config, prefix: str) -> Iterator[str]:
    """Paths of every ``rope_theta`` that has a value, in whatever the files have of rotary positions."""
    for key, value in inside.items():
        if key == "rope_theta" and value is not None:
            yield f"{prefix}{key}"
        elif isinstance(value, Mapping) and ("rope" in key or "rope" in prefix):
            yield from _thetas(value, f"{prefix}{key}.")


def _pairs(config: Config, wanted: DFlashConfig) -> Iterator[Changes]:
    neox, keys = not wanted.rope_interleaved, ("rope_is_neox_style", "is_neox_style")
    yield _stated(config, dict.fromkeys(keys, neox)) or {keys[0]: neox}


def _slots(config: Config, wanted: DFlashConfig) -> Iterator[Changes]:
    shifted, keys = wanted.first_slot == 0, ("shift_label", "sample_from_anchor")
    yield _stated(config, dict.fromkeys(keys, shifted))
    yield from (_set(config, key, shifted, BLOCKS[0]) for key in keys)


def _embedding(config: Config, wanted: DFlashConfig) -> Iterator[Changes]:
    yield _set(config, "block_embedding", wanted.embedding, BLOCKS[0])


def _scale(config: Config, wanted: DFlashConfig) -> Iterator[Changes]:
    yield _set(config, "input_embedding_scale", wanted.embedding_scale, BLOCKS[0])


def _none(config: Config, wanted: DFlashConfig) -> Iterator[Changes]:
    yield from ()


# Field -> the ways in which some dialect says it. None says where a tap of the last layer is read (``last_tap``).
_CANDIDATES: Mapping[str, Callable[[Config, DFlashConfig], Iterator[Changes]]] = {
    "target_layer_ids": _taps,
    "layer_causal": _causality,
    "layer_windows": _windows,
    "rope_parameters": _rope,
    "rope_interleaved": _pairs,
    "first_slot": _slots,
    "embedding": _embedding,
    "embedding_scale": _scale,
}
