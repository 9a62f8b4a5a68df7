"""From the pair options to loaded, attached models and the names they go by in output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from dflash_hf.cli.command import PairOptions, note
from dflash_hf.cli.quiet import quiet_transformers
from dflash_hf.errors import HubError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from dflash_hf.drafter.model import DFlashDrafter

__all__ = ["DTYPES", "Pair", "load", "pick_dtype", "refuse_unknown_dtype"]

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Pair:
    """What a command works with. ``names`` are for people: never a path in the cache."""

    model: PreTrainedModel
    drafter: DFlashDrafter
    tokenizer: PreTrainedTokenizerBase
    names: dict[str, str]

    def describe(self) -> str:
        """Target, drafter, dtype and device in one line."""
        dtype = str(self.model.dtype).removeprefix("torch.")
        return f"{self.names['target']} with {self.names['drafter']}; {dtype} on {self.model.device}"


def load(options: PairOptions) -> Pair:
    """Load, check and attach the pair.

    Raises:
        typer.BadParameter: the options contradict each other.
        DFlashError: a model cannot be had, or the two do not fit.
    """
    refuse_unknown_dtype(options.dtype)
    if options.target is not None and options.drafter is None:
        raise typer.BadParameter("--target needs --drafter: the embedded drafter only drafts for the embedded target")
    from dflash_hf.pretrained.smollm2 import (
        embedded_drafter_folder,
        embedded_target_folder,
        embedded_target_is_ready,
        embedded_target_name,
    )

    drafter = options.drafter or embedded_drafter_folder()
    names = {
        "target": options.target or embedded_target_name(),
        "drafter": options.drafter or "the embedded drafter",
    }
    _import_transformers()
    if options.target is None and not embedded_target_is_ready():
        note(f"dequantising {names['target']}; this happens once and takes about half a minute")
    target = options.target or embedded_target_folder()
    note(f"loading {names['target']} with {names['drafter']}")
    model, loaded, tokenizer = _load(str(target), str(drafter), options)
    return Pair(model, loaded, tokenizer, names)


def pick_dtype(name: str, accelerated: bool) -> Any:
    """What ``from_pretrained`` gets as ``dtype``: ``"auto"`` is the stored one on an accelerator, float32 on a CPU."""
    import torch

    if name == "auto":
        return "auto" if accelerated else torch.float32
    return getattr(torch, name)


def refuse_unknown_dtype(name: str) -> None:
    if name not in DTYPES:
        raise typer.BadParameter(f"--dtype is one of {', '.join(DTYPES)}, not {name!r}")


def _import_transformers() -> None:
    """Silenced as soon as it is there, before anything is dequantised or loaded."""
    import transformers  # noqa: F401

    quiet_transformers()


def _load(
    target: str, drafter: str, options: PairOptions
) -> tuple[PreTrainedModel, DFlashDrafter, PreTrainedTokenizerBase]:
    from transformers import AutoTokenizer

    from dflash_hf import load_pair

    device = options.device_map or _accelerator()
    try:
        tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=options.local_files_only)
        model, loaded = load_pair(
            target,
            drafter,
            revision=options.revision,
            dtype=pick_dtype(options.dtype, device not in (None, "cpu")),
            device_map=device,
            attn_implementation=options.attn_implementation,
            local_files_only=options.local_files_only,
        )
    except OSError as error:  # transformers' word for "no such model": a long text, whose first line says it
        raise HubError(f"cannot load the target {target}: {str(error).strip().splitlines()[0]}") from error
    return model, loaded, tokenizer


def _accelerator() -> str | None:
    import torch

    device: torch.device | None = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if device is None else device.type
