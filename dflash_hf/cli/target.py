"""From the target options to a tokenizer or a loaded target, for commands that need no drafter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dflash_hf.bench.pair import pick_dtype, refuse_unknown_dtype
from dflash_hf.cli.command import TargetOptions, note
from dflash_hf.cli.quiet import quiet_transformers
from dflash_hf.errors import HubError
from dflash_hf.target.quantise import check_quantization, quantization_config, stored_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dflash_hf.target.view import TargetView

__all__ = ["load_target", "load_tokenizer"]


def load_tokenizer(options: TargetOptions) -> PreTrainedTokenizerBase:
    """The target's tokenizer.

    Raises:
        HubError: it cannot be had.
    """
    from transformers import AutoTokenizer

    quiet_transformers()
    with _explained(options):
        return AutoTokenizer.from_pretrained(_source(options), local_files_only=options.local_files_only)


def load_target(options: TargetOptions) -> TargetView:
    """The target, in evaluation mode, on this process's accelerator where there is one.

    Raises:
        OptionsError: an unknown dtype or quantization, or bitsandbytes is not installed.
        DFlashError: it cannot be had, or is no causal LM.
    """
    refuse_unknown_dtype(options.dtype)
    check_quantization(options.quantization)
    import torch
    from transformers import AutoModelForCausalLM

    from dflash_hf.target.view import view_target

    quiet_transformers()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = options.device_map or _own_device()
    dtype = pick_dtype(options.dtype, device not in (None, "cpu"))
    loading: dict[str, Any] = {"dtype": dtype, "local_files_only": options.local_files_only}
    with _explained(options):
        source = _source(options)
        if options.quantization is not None:
            stored = stored_dtype(source, **loading)
            loading["quantization_config"] = quantization_config(options.quantization, stored)
        model = AutoModelForCausalLM.from_pretrained(source, device_map=device, **loading)
    return view_target(model.eval())


def _source(options: TargetOptions) -> str:
    from dflash_hf.pretrained.smollm2 import embedded_target_folder, embedded_target_is_ready, embedded_target_name

    if options.target is not None:
        return options.target
    if not embedded_target_is_ready():
        note(f"dequantising {embedded_target_name()}; this happens once and takes about half a minute")
    return str(embedded_target_folder())


def _own_device() -> str | None:
    """The accelerator that belongs to this process of a launch; None where there is none."""
    import torch

    accelerator: torch.device | None = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    return None if accelerator is None else f"{accelerator.type}:{os.environ.get('LOCAL_RANK', 0)}"


@contextmanager
def _explained(options: TargetOptions) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # transformers' word for "no such model": a long text, whose first line says it
        raise HubError(f"cannot load the target {options.target}: {str(error).strip().splitlines()[0]}") from error
