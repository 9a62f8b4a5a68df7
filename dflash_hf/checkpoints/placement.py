"""What ``dtype=`` and ``device_map=`` mean for a drafter: one dtype, one device.

A drafter is small and a round calls it whole, so it lives on one device; a map that splits it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import OptionsError

__all__ = ["resolve_device", "resolve_dtype"]

_AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")


def resolve_dtype(dtype: torch.dtype | str | None, stored: torch.dtype) -> torch.dtype:
    """The dtype to load in. ``"auto"`` and None keep the stored one.

    >>> resolve_dtype("bfloat16", torch.float32)
    torch.bfloat16
    """
    if dtype is None or dtype == "auto":
        return stored
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise OptionsError(
            f"dtype={dtype!r} is no floating-point dtype; say 'auto', 'float32', 'bfloat16' or 'float16'"
        )
    return found


def resolve_device(device_map: Any, config: DFlashConfig, dtype: torch.dtype) -> torch.device:
    """The device to load on. None is the CPU (or torch's default device); ``"auto"`` asks accelerate.

    Raises:
        OptionsError: no such device, a map that splits the drafter, or accelerate is not installed.
    """
    if device_map is None:
        return torch.get_default_device()
    if isinstance(device_map, str) and device_map in _AUTOMATIC:
        device_map = _automatic(config, dtype)
    if isinstance(device_map, Mapping):
        devices = set(device_map.values())
        if len(devices) != 1:
            raise OptionsError(
                f"device_map spreads the drafter over {sorted(map(str, devices))}; it is small and runs on one device: "
                "pass device_map='cuda:0' or the like"
            )
        (device_map,) = devices
    try:
        device = torch.device(device_map)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as error:
        raise OptionsError(f"device_map={device_map!r} is no device of this machine ({error})") from error
    if device.type == "meta":
        raise OptionsError("device_map='meta' would leave the drafter without weights; name a device")
    return device


def _automatic(config: DFlashConfig, dtype: torch.dtype) -> Mapping[str, Any]:
    try:
        from accelerate import infer_auto_device_map
    except ImportError as error:
        raise OptionsError(
            "device_map='auto' needs accelerate, which is not installed: pip install accelerate, or name a device "
            "(device_map='cuda:0')"
        ) from error
    with torch.device("meta"):
        shape = DFlashDrafter(config)
    found: Mapping[str, Any] = infer_auto_device_map(shape, dtype=dtype, no_split_module_classes=["DFlashDecoderLayer"])
    return found
