"""What a reader hands back, and how it maps tensor names: the contract between dialects and the loader.

A reader is a function ``read(config, tensors) -> Reading`` that only translates: it opens no file and moves no weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError

__all__ = ["Made", "Reader", "Reading", "canonical_names", "file_name", "is_surplus", "unwrapped"]

# Tensors that may be left unread in any dialect: they are derived from the config.
_SURPLUS = re.compile(r"(^|\.)rotary_emb\.(original_)?inv_freq$")
_WRAPPED = re.compile(r"^(draft_model\.|model\.|logit_head\.)+")  # what writers put before a name; it says nothing
# Where z-lab's names, which dialects translate into, are found in ``DFlashDrafter``.
_IN_MEMORY = (("fc.", "fusion.fc."), ("hidden_norm.", "fusion.norm."))


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor in memory that is computed from one in the files, because the files say it otherwise."""

    source: str  # name in the files
    shape: tuple[int, ...]
    make: Callable[..., Tensor]  # of the source, and of what lies beside it
    beside: tuple[str, ...] = ()  # more names in the files


@dataclass(frozen=True, slots=True)
class Reading:
    """A checkpoint in canonical words.

    Args:
        config: the drafter's description.
        names: name in the files -> name in ``DFlashDrafter.state_dict()``.
        made: name in ``DFlashDrafter.state_dict()`` -> how it is computed; several may come from one tensor.
        defaults, notes: see :class:`~dflash_hf.checkpoints.provenance.Provenance`.
        left: names in the files that this dialect writes and no drafting needs.
    """

    config: DFlashConfig
    names: Mapping[str, str]
    made: Mapping[str, Made] = field(default_factory=dict)
    defaults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Reader(Protocol):
    """Translates one dialect."""

    def __call__(self, config: Mapping[str, Any], tensors: TensorTable) -> Reading:
        """Raises CheckpointError for anything missing, contradictory or undefined."""


def unwrapped(name: str) -> str:
    """A tensor's name without what was put before it.

    >>> unwrapped("draft_model.model.fc.weight")
    'fc.weight'
    """
    return _WRAPPED.sub("", name)


def is_surplus(name: str) -> bool:
    """Whether a tensor may be left unread."""
    return _SURPLUS.search(name) is not None


def canonical_names(names: Iterable[str], renames: Iterable[tuple[str, str]]) -> dict[str, str]:
    """File names, unwrapped -> names in memory: each rename replaces a leading part, in order. Surplus is left out.

    Args:
        names: of the tensors in the files.
        renames: from the dialect's names to z-lab's, or straight to those in memory.

    >>> canonical_names(["model.fc.weight", "model.rotary_emb.inv_freq", "midlayer.a"], [("midlayer.", "layers.0.")])
    {'model.fc.weight': 'fusion.fc.weight', 'midlayer.a': 'layers.0.a'}
    """
    mapped: dict[str, str] = {}
    renames = tuple(renames)
    taken: dict[str, str] = {}
    for name in names:
        if is_surplus(name):
            continue
        canonical = unwrapped(name)
        for seen, wanted in (*renames, *_IN_MEMORY):
            if canonical.startswith(seen):
                canonical = wanted + canonical.removeprefix(seen)
        if canonical in taken:
            raise CheckpointError(
                f"tensors {taken[canonical]} and {name} are both {canonical}; one of them is a leftover"
            )
        taken[canonical] = name
        mapped[name] = canonical
    return mapped


def file_name(name: str) -> str:
    """z-lab's name of a tensor that is called ``name`` in memory.

    >>> file_name("fusion.norm.weight"), file_name("layers.0.mlp.up_proj.weight")
    ('hidden_norm.weight', 'layers.0.mlp.up_proj.weight')
    """
    for seen, wanted in _IN_MEMORY:
        if name.startswith(wanted):
            return seen + name.removeprefix(wanted)
    return name
