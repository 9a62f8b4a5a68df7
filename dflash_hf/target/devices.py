"""Where a module computes. accelerate leaves what it offloads on the "meta" device and brings it elsewhere for a call.

In: a loaded module. Out: a device that tensors can be made on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["computing_device"]


def computing_device(module: nn.Module, otherwise: torch.device | None = None) -> torch.device:
    """The device of the module's first weight, or the one accelerate brings it to.

    Args:
        module: a model or a part of one.
        otherwise: the answer for a module that has neither; the CPU by default.
    """
    weight = next(module.parameters(), None)
    if weight is not None and weight.device.type != "meta":
        return weight.device
    for part in module.modules():
        if (device := _brought_to(part)) is not None:
            return device
    return otherwise or torch.device("cpu")


def _brought_to(module: nn.Module) -> torch.device | None:
    """What accelerate's hook on this module says, where it has one that says it."""
    hook: Any = getattr(module, "_hf_hook", None)
    for each in getattr(hook, "hooks", [hook]):
        device = getattr(each, "execution_device", None)
        if device is not None and torch.device(device).type != "meta":
            return torch.device(device)
    return None
