"""The layouts we write: z-lab's, transformers' own drafter's, and speculators'.

Describing is pure; what a layout cannot say is a ``CheckpointError`` that lists it, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_hf.checkpoints.host_layout import host_config, host_name
from dflash_hf.checkpoints.speculators_layout import speculators_config, speculators_state
from dflash_hf.checkpoints.zlab_layout import zlab_config, zlab_name
from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import OptionsError

__all__ = ["LAYOUTS", "Layout", "layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout: what its config.json says of a drafter, and what tensors lie beside it."""

    describe: Callable[[DFlashConfig, torch.dtype], dict[str, Any]]
    state: Callable[[DFlashDrafter], dict[str, Tensor]]


def layout(to: str) -> Layout:
    """The layout called ``to``."""
    if to not in LAYOUTS:
        raise OptionsError(f"to={to!r} is no layout; known: {', '.join(LAYOUTS)}")
    return LAYOUTS[to]


def _renamed(name_of: Callable[[str], str]) -> Callable[[DFlashDrafter], dict[str, Tensor]]:
    return lambda drafter: {name_of(name): tensor for name, tensor in drafter.state_dict().items()}


LAYOUTS: Mapping[str, Layout] = {
    "zlab": Layout(zlab_config, _renamed(zlab_name)),
    "host": Layout(host_config, _renamed(host_name)),
    "speculators": Layout(speculators_config, speculators_state),
}
