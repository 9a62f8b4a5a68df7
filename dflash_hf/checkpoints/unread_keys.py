"""Keys that change what a drafter computes, in files of a dialect that does not read them: an error, never left aside.

In: a config that remembers what its reader asked for, and the reading. Out: nothing, or an
``UnsupportedCheckpointError``. A key says nothing new where its value is what the drafter is anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dflash_hf.checkpoints.nested_keys import BLOCKS
from dflash_hf.checkpoints.recorded import Recorded
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import UnsupportedCheckpointError

__all__ = ["refuse_unread_keys"]

_PLAIN_ATTENTION = ("gqa", "mha")  # SpecForge's names of what is built here
_HEADS = {"dflash": "parallel", "dflash2": "selector", "domino": "gru", "dspark": "markov"}  # projector -> head


def _causal(value: Any, config: DFlashConfig) -> bool:
    return set(config.layer_causal) == {value}


def _sinks(value: Any, config: DFlashConfig) -> bool:
    return bool(value == config.attention_sinks)


def _first_slot(value: Any, config: DFlashConfig) -> bool:
    return bool(value == (config.first_slot == 0))


def _gru(value: Any, config: DFlashConfig) -> bool:
    return config.head["kind"] == "gru"


def _projector(value: Any, config: DFlashConfig) -> bool:
    ranked_0 = value == "dspark" and config.first_slot == 0  # DeepSpec's, without a Markov head
    return ranked_0 or _HEADS.get(str(value)) == config.head["kind"]


def _off(value: Any, config: DFlashConfig) -> bool:
    return not value


# Key -> whether this value is what the drafter is without it.
_SAYS_NOTHING_NEW: Mapping[str, Callable[[Any, DFlashConfig], bool]] = {
    "add_swa_attention_sink_bias": _sinks,
    "attention_mode": lambda value, config: value in _PLAIN_ATTENTION,
    "attention_modes": lambda value, config: isinstance(value, list) and not {*map(str, value)} - {*_PLAIN_ATTENTION},
    "attention_sink_bias": _sinks,
    "attention_value_scale": lambda value, config: value == config.value_scale,
    "backbone_rotary_base": lambda value, config: value == (
        config.context_rope_theta or config.rope_parameters["rope_theta"]
    ),
    "causal": _causal,
    "causal_head": lambda value, config: not value or all(config.layer_causal),
    "emb_dim": _gru,
    "enable_hidden_correction": _off,
    "final_logit_softcapping": lambda value, config: value == config.final_logit_softcapping,
    "fusion_type": lambda value, config: value == "concat_fc",
    "gate_temperature": lambda value, config: value == 1,
    "gating": lambda value, config: value in (False, "disabled"),
    "gru_hidden_dim": _gru,
    "hidden_correction_pos_adaptive": _off,
    "input_embedding_scale": lambda value, config: value == config.embedding_scale,
    "is_causal": _causal,
    # DFly's files carry the rank of a head they do not have.
    "markov_rank": lambda value, config: (
        value == 0 or config.head["kind"] in ("markov", "fly") or config.fusion == "mixed_concat"
    ),
    "markov_pos_adaptive": _off,
    "model_arch": lambda value, config: value == "dflash",
    "output_multiplier": lambda value, config: value == (config.output_multiplier or 1.0),
    "projector_type": _projector,
    "sample_from_anchor": _first_slot,
    "selector_rank": lambda value, config: value == 0 or config.head["kind"] == "selector",
    "shift_label": _first_slot,
    "sliding_windows": lambda value, config: value == [window or 0 for window in config.layer_windows],
    "use_swa": lambda value, config: not value or None not in config.layer_windows,
}  # fmt: skip


def refuse_unread_keys(config: Recorded, drafter: DFlashConfig, dialect: str) -> None:
    """Look for keys of the table that ``config`` has and its reader did not ask for.

    Args:
        config: as the reader of ``dialect`` left it.
        drafter: what was read.
        dialect: its name.
    """
    for path, value in _given(config).items():
        key = path.rpartition(".")[2]
        if path not in config.hits and not _SAYS_NOTHING_NEW[key](value, drafter):
            raise UnsupportedCheckpointError(
                f"config.json: {path} is {value!r}, which would change what the drafter computes, but nobody describes "
                f"it for files of this dialect ({dialect}); read without it this would be another drafter"
            )


def _given(config: Recorded) -> dict[str, Any]:
    """Path -> value of the table's keys that are not null, without asking; nested ones stand before the top's."""
    blocks = {key: value for key, value in config.items() if key in BLOCKS}
    found: dict[str, Any] = {}
    for prefix, values in (("", config), *((f"{name}.", block) for name, block in blocks.items())):
        if isinstance(values, Mapping):
            found |= {f"{prefix}{key}": value for key, value in values.items() if key in _SAYS_NOTHING_NEW}
    found = {path: value for path, value in found.items() if value is not None}
    return {path: value for path, value in found.items() if not _covered(path, found)}


def _covered(path: str, found: Mapping[str, Any]) -> bool:
    """Whether a key at the top stands in a block too, where it is looked for first."""
    return "." not in path and any(f"{name}.{path}" in found for name in BLOCKS)
