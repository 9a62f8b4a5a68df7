"""What a figure was measured on: versions, machine, model, settings, command. No git: a wheel has none."""

from __future__ import annotations

import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from dflash_hf import __version__

__all__ = ["describe_machine", "describe_model", "provenance", "versions"]

_PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "huggingface-hub", "bitsandbytes")


def provenance(model: Any, pair: dict[str, str]) -> dict[str, Any]:
    """Everything that must stand beside a speed.

    Args:
        model: the target, a ``PreTrainedModel``.
        pair: names of ``target`` and ``drafter``.
    """
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": versions(),
        "machine": describe_machine(),
        "pair": pair,
        "model": describe_model(model),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide text and speed; absent ones are named so."""
    found = {"dflash-hf": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def describe_machine() -> dict[str, Any]:
    """CPU, accelerator and threads, as torch sees them."""
    import torch

    accelerator = None
    if torch.cuda.is_available():
        accelerator = torch.cuda.get_device_name()
    elif torch.accelerator.is_available():
        accelerator = str(torch.accelerator.current_accelerator())
    return {
        "cpu": _cpu_name(),
        "accelerator": accelerator,
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }


def describe_model(model: Any) -> dict[str, Any]:
    """Dtype, device, attention and quantisation of a loaded model."""
    from dflash_hf.target.devices import computing_device

    return {
        "class": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(computing_device(model)),
        "attn_implementation": model.config._attn_implementation,
        "quantization": _quantization(getattr(model.config, "quantization_config", None)),
    }


def _quantization(config: Any) -> str | None:
    """The method; for bitsandbytes, which has several, also which."""
    fields: dict[str, Any] = config if isinstance(config, dict) else dict(vars(config)) if config is not None else {}
    method = fields.get("quant_method")
    if method is None:
        return None
    name = str(getattr(method, "value", method))
    if fields.get("load_in_8bit") or fields.get("_load_in_8bit"):
        return f"{name} 8-bit"
    four = fields.get("load_in_4bit") or fields.get("_load_in_4bit")
    return f"{name} 4-bit {fields.get('bnb_4bit_quant_type')}" if four else name


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
