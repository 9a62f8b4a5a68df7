"""Where a loaded drafter came from and what was decided on the way: what ``dflash-hf inspect`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_hf.checkpoints.files import TensorTable

__all__ = ["Provenance"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Read-only record that hangs at ``drafter.provenance`` after loading.

    Args:
        source: Hub id or folder as the caller gave it, with the subfolder where there is one.
        revision: commit the files were taken from; None for a local folder.
        dialect: name of the reader (``dflash_hf.checkpoints.dialects``).
        defaults: keys the files lack and what was filled in, e.g. ``"block_size=16: default of z-lab's writer"``.
        notes: what was in the files and is deliberately not used, with the reason.
        stored_dtype: dtype of the weights in the files, e.g. ``"bfloat16"``.
        files: names of the files read.
        evidence: what in the files says that they are of this dialect.
        origins: field of the config -> where its value is from: a key of the files, a default, tensors, the dialect.
        names: tensor in memory -> the one in the files.
        config, tensors: config.json, and what the files' headers say of the tensors, as they were read.
    """

    source: str
    revision: str | None
    dialect: str
    defaults: tuple[str, ...]
    notes: tuple[str, ...]
    stored_dtype: str
    files: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    tensors: TensorTable = field(default_factory=dict, repr=False)
