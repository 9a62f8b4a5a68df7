"""A target and its drafter, loaded and attached together."""

from __future__ import annotations

import os
from os import PathLike
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dflash_hf.checkpoints.placement import resolve_dtype
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import HubError, OptionsError, warn
from dflash_hf.generation.attach import attach
from dflash_hf.generation.attach import generate as attached_generate
from dflash_hf.generation.memory import ContextMemory
from dflash_hf.generation.record import last_trace
from dflash_hf.pretrained.auto import AUTO, choose_drafter
from dflash_hf.target.pairing import check_pair
from dflash_hf.target.plain_weights import is_quantised
from dflash_hf.target.quantise import check_quantization, quantization_config, stored_dtype
from dflash_hf.target.view import model_name, view_target
from dflash_hf.trace import Trace

__all__ = ["DFlashModel", "load_pair"]


def load_pair(
    target: str | PathLike[str] | PreTrainedModel,
    drafter: str | PathLike[str] | DFlashDrafter,
    *,
    revision: str | None = None,
    target_revision: str | None = None,
    dtype: Any = "auto",
    device_map: Any = None,
    attn_implementation: str | None = None,
    quantization: str | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
    cache_dir: str | PathLike[str] | None = None,
    **target_options: Any,
) -> tuple[PreTrainedModel, DFlashDrafter]:
    """Load a pair and attach it.

    Args:
        target: a Hub id, a folder, or a loaded model.
        drafter: a Hub id, a folder, or a loaded drafter; ``"auto"`` takes the one published for this target
            (:func:`dflash_hf.pretrained.auto.choose_drafter`) and warns which. One that is loaded here goes to the
            device of the target's head, in the target's dtype; beside a quantised target in ``dtype``, as stored by
            default.
        revision, target_revision: branch, tag or commit on the Hub of the drafter, and of the target.
        dtype, device_map, attn_implementation: of the target.
        quantization: ``"bnb-8bit"`` or ``"bnb-4bit"`` (nf4): the target's linear layers, as bitsandbytes has them.
        local_files_only, token, cache_dir: for both.
        target_options: further arguments of ``AutoModelForCausalLM.from_pretrained``.

    Returns:
        The attached target and the drafter.

    Raises:
        HubError: the Hub, or a folder, did not deliver one of them.
        OptionsError: the target cannot be loaded with this dtype, device_map, attn_implementation or quantization,
            or no drafter is known for it (``"auto"``).
        CheckpointError, IncompatiblePairError: the drafter cannot be read, or does not fit.
    """
    shared = {"local_files_only": local_files_only, "token": token, "cache_dir": cache_dir}
    if drafter == AUTO:
        name = model_name(target) if isinstance(target, PreTrainedModel) else os.fspath(target)
        choice = choose_drafter(name, local_files_only=local_files_only, token=token)
        warn(choice.sentence(name, revision))
        drafter = choice.drafter
    if quantization is not None:
        if isinstance(target, PreTrainedModel) or target_options.get("quantization_config") is not None:
            raise OptionsError("quantization quantises a target as it is loaded here, by itself: drop it")
        check_quantization(quantization)
    # The drafter first: it is small, and a mistake in it is found at once.
    loaded = (
        drafter
        if isinstance(drafter, DFlashDrafter)
        else DFlashDrafter.from_pretrained(drafter, revision=revision, **shared)
    )
    if not isinstance(target, PreTrainedModel):
        if attn_implementation is not None:
            target_options["attn_implementation"] = attn_implementation
        target_options |= {"revision": target_revision or "main", "dtype": dtype, "device_map": device_map, **shared}
        target = _load_target(target, target_options, quantization)
    if loaded is not drafter:
        loaded = loaded.to(view_target(target).head_device, _drafter_dtype(loaded, target, dtype))
    return attach(target, loaded), loaded


def _drafter_dtype(drafter: DFlashDrafter, target: PreTrainedModel, asked: Any) -> torch.dtype:
    """The target's; of a quantised target, whose dtype says little, what was asked for, or the drafter's own."""
    if not is_quantised(target):
        return target.dtype
    return drafter.dtype if asked in (None, "auto") else resolve_dtype(asked, drafter.dtype)


def _load_target(name: str | PathLike[str], options: dict[str, Any], quantization: str | None) -> PreTrainedModel:
    try:
        if quantization is not None:
            dtype = stored_dtype(name, **options)
            options = {**options, "quantization_config": quantization_config(quantization, dtype)}
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(name, **options)
    except OSError as error:  # transformers' word for "no such model": a long text, whose first line says it
        if str(name).startswith(("/", ".", "~")):
            raise HubError(f"cannot load the target {name}: no folder with a config.json there") from error
        raise HubError(f"cannot load the target {name}: {_first_line(error)}") from error
    except (ValueError, ImportError, AttributeError, AssertionError) as error:
        said = {key: options.get(key) for key in ("dtype", "device_map", "attn_implementation")}
        if (quantised := options.get("quantization_config")) is not None:
            said["quantization"] = getattr(getattr(quantised, "quant_method", None), "value", quantised)
        settings = ", ".join(f"{key}={value}" for key, value in said.items() if value is not None)
        raise OptionsError(f"cannot load the target {name} with {settings}: {_first_line(error)}") from error
    return model


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class DFlashModel:
    """A pair as one object, for code that wants something with a ``generate``: the target itself stays untouched.

    Anything but ``generate`` and ``last_trace`` is the target's own (``config``, ``device``, ``forward`` ...).
    """

    def __init__(self, target: PreTrainedModel, drafter: DFlashDrafter) -> None:
        check_pair(target, drafter)
        self.target, self.drafter = target, drafter
        self._memory = ContextMemory()

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Drafted ``generate`` of the target; see :func:`dflash_hf.generation.attach.generate`."""
        kwargs = {"assistant": self.drafter, "dflash_memory": self._memory, **kwargs}
        return attached_generate(self.target, *args, **kwargs)

    @property
    def last_trace(self) -> Trace | None:
        return last_trace()

    def __repr__(self) -> str:
        return f"DFlashModel({model_name(self.target)}, {model_name(self.drafter)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("target", "drafter", "_memory"):
            raise AttributeError(name)
        return getattr(self.target, name)
