"""A target and its drafter, loaded and attached together."""

from __future__ import annotations

from os import PathLike
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import HubError
from dflash_hf.generation.attach import attach
from dflash_hf.generation.attach import generate as attached_generate
from dflash_hf.generation.record import last_trace
from dflash_hf.target.pairing import check_pair
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
    local_files_only: bool = False,
    token: str | bool | None = None,
    cache_dir: str | PathLike[str] | None = None,
    **target_options: Any,
) -> tuple[PreTrainedModel, DFlashDrafter]:
    """Load a pair and attach it.

    Args:
        target: a Hub id, a folder, or a loaded model.
        drafter: a Hub id, a folder, or a loaded drafter; put on the target's device and in its dtype.
        revision, target_revision: branch, tag or commit on the Hub of the drafter, and of the target.
        dtype, device_map, attn_implementation: of the target.
        local_files_only, token, cache_dir: for both.
        target_options: further arguments of ``AutoModelForCausalLM.from_pretrained``.

    Returns:
        The attached target and the drafter.

    Raises:
        HubError: the Hub, or a folder, did not deliver one of them.
        CheckpointError, IncompatiblePairError: the drafter cannot be read, or does not fit.
    """
    shared = {"local_files_only": local_files_only, "token": token, "cache_dir": cache_dir}
    if not isinstance(target, PreTrainedModel):
        if attn_implementation is not None:
            target_options["attn_implementation"] = attn_implementation
        name = target
        try:
            target = AutoModelForCausalLM.from_pretrained(
                name, revision=target_revision or "main", dtype=dtype, device_map=device_map, **shared, **target_options
            )
        except OSError as error:  # transformers' word for "no such model": a long text, whose first line says it
            raise HubError(f"cannot load the target {name}: {str(error).strip().splitlines()[0]}") from error
    if not isinstance(drafter, DFlashDrafter):
        drafter = DFlashDrafter.from_pretrained(
            drafter, revision=revision, dtype=target.dtype, device_map=str(target.device), **shared
        )
    return attach(target, drafter), drafter


class DFlashModel:
    """A pair as one object, for code that wants something with a ``generate``: the target itself stays untouched.

    Anything but ``generate`` and ``last_trace`` is the target's own (``config``, ``device``, ``forward`` ...).
    """

    def __init__(self, target: PreTrainedModel, drafter: DFlashDrafter) -> None:
        check_pair(target, drafter)
        self.target, self.drafter = target, drafter

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Drafted ``generate`` of the target; see :func:`dflash_hf.generation.attach.generate`."""
        return attached_generate(self.target, *args, **{"assistant": self.drafter, **kwargs})

    @property
    def last_trace(self) -> Trace | None:
        return last_trace()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("target", "drafter"):
            raise AttributeError(name)
        return getattr(self.target, name)
