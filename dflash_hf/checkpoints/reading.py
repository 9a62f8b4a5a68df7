"""What a reader hands back, and how it maps tensor names: the contract between dialects and the loader.

A reader is a function ``read(config, tensors) -> Reading`` that only translates: it opens no file and moves no weight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError

__all__ = ["Reader", "Reading", "canonical_names", "is_surplus"]

# Tensors that may be left unread: derived from the config, only needed in training, or copies of the target's.
_SURPLUS = re.compile(r"(^|\.)(rotary_emb\.(original_)?inv_freq|t2d)$|^verifier_")


@dataclass(frozen=True, slots=True)
class Reading:
    """A checkpoint in canonical words.

    Args:
        config: the drafter's description.
        names: name in the files -> name in ``DFlashDrafter.state_dict()``.
        defaults, notes: see :class:`~dflash_hf.checkpoints.provenance.Provenance`.
    """

    config: DFlashConfig
    names: Mapping[str, str]
    defaults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Reader(Protocol):
    """Translates one dialect."""

    def __call__(self, config: Mapping[str, Any], tensors: TensorTable) -> Reading:
        """Raises CheckpointError for anything missing, contradictory or undefined."""


def is_surplus(name: str) -> bool:
    """Whether a tensor may be left unread."""
    return _SURPLUS.search(name) is not None


def canonical_names(names: Iterable[str], renames: Iterable[tuple[str, str]]) -> dict[str, str]:
    """File names -> canonical names: each rename replaces a leading part, in order; surplus tensors are left out.

    >>> canonical_names(["model.fc.weight", "rotary_emb.inv_freq"], [("model.", "")])
    {'model.fc.weight': 'fc.weight'}
    """
    mapped: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in names:
        if is_surplus(name):
            continue
        canonical = name
        for seen, wanted in renames:
            if canonical.startswith(seen):
                canonical = wanted + canonical.removeprefix(seen)
        if canonical in taken:
            raise CheckpointError(
                f"tensors {taken[canonical]} and {name} are both {canonical}; one of them is a leftover"
            )
        taken[canonical] = name
        mapped[name] = canonical
    return mapped
