"""From a config.json and a table of tensors to a canonical reading: detect, translate, refuse what nobody reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_hf.checkpoints.dialects import detect_with_evidence, reader
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.reading import Reading
from dflash_hf.checkpoints.recorded import Recorded
from dflash_hf.checkpoints.unread_keys import refuse_unread_keys

__all__ = ["Translated", "translate"]


@dataclass(frozen=True, slots=True)
class Translated:
    """The dialect of a checkpoint, what says so, what was asked of its config, and the reading."""

    dialect: str
    evidence: tuple[str, ...]
    asked: Recorded
    reading: Reading


def translate(config: Mapping[str, Any], tensors: TensorTable) -> Translated:
    """Read a surveyed checkpoint. No weight is read, and ``config`` stays as it is.

    Raises:
        UnsupportedCheckpointError: a dialect this version does not read, or a key it does not know in this one.
        CheckpointError: files that are incomplete or contradict themselves.
    """
    asked = Recorded(config)
    dialect, evidence = detect_with_evidence(config, tensors)
    reading = reader(dialect)(asked, tensors)
    refuse_unread_keys(asked, reading.config, dialect)
    return Translated(dialect, evidence, asked, reading)
