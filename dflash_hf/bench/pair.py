"""A pair as commands and the demo use it: loaded, checked, attached, with names for people.

This module imports torch and transformers only when a pair is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dflash_hf.bench.provenance import describe_model
from dflash_hf.errors import HubError, OptionsError
from dflash_hf.target.quantise import check_quantization

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from dflash_hf.drafter.model import DFlashDrafter

__all__ = ["DTYPES", "Pair", "PairSource", "pick_dtype", "refuse_unknown_dtype"]

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Pair:
    """Loaded models. ``names`` ("target", "drafter") are for people and files: of a folder only its last part.

    ``thinking`` says in which mode the drafter was trained, where that is known.
    """

    model: PreTrainedModel
    drafter: DFlashDrafter
    tokenizer: PreTrainedTokenizerBase
    names: dict[str, str]
    thinking: bool | None = None

    def describe(self) -> str:
        """Target, drafter, dtype and device in one line."""
        dtype = str(self.model.dtype).removeprefix("torch.")
        kind = describe_model(self.model)["quantization"]
        quantised = f", target quantised ({kind})" if kind else ""
        return f"{self.names['target']} with {self.names['drafter']}; {dtype}{quantised} on {self.device}"

    @property
    def device(self) -> torch.device:
        """Where inputs belong."""
        from dflash_hf.target.devices import computing_device

        return computing_device(self.model)


@dataclass(frozen=True, slots=True)
class PairSource:
    """Where a pair comes from and how it is loaded; without a target it is the embedded pair.

    Raises:
        OptionsError: an unknown dtype or quantization, bitsandbytes missing, or a target without a drafter.
    """

    target: str | None = None  # folder or Hub id
    drafter: str | None = None  # folder, Hub id, or "auto": the one published for the target
    revision: str | None = None  # of the drafter on the Hub
    dtype: str = "auto"  # one of DTYPES; "auto" is the stored one on an accelerator, float32 on a CPU
    device_map: str | None = None  # None: the accelerator, where there is one
    attn_implementation: str | None = None
    local_files_only: bool = False
    quantization: str | None = None  # of the target, one of QUANTIZATIONS; the drafter stays in its own dtype

    def __post_init__(self) -> None:
        refuse_unknown_dtype(self.dtype)
        check_quantization(self.quantization)
        if self.target is not None and self.drafter is None:
            raise OptionsError("a target needs a drafter: the embedded drafter only drafts for the embedded target")

    def load(self, say: Callable[[str], None] = lambda text: None) -> Pair:
        """Load, check and attach the pair.

        Args:
            say: told what takes long, before it starts.

        Raises:
            DFlashError: a model cannot be had, or the two do not fit.
        """
        from dflash_hf.pretrained.auto import known_thinking
        from dflash_hf.pretrained.smollm2 import (
            embedded_drafter_folder,
            embedded_target_folder,
            embedded_target_is_ready,
            embedded_target_name,
        )
        from dflash_hf.target.view import public_name

        if self.drafter == "auto":
            return self.chosen(say).load(say)
        drafter = self.drafter or embedded_drafter_folder()
        names = {
            "target": public_name(self.target) if self.target else embedded_target_name(),
            "drafter": public_name(self.drafter) if self.drafter else "the embedded drafter",
        }
        if self.target is None and not embedded_target_is_ready():
            say(f"dequantising {names['target']}; this happens once and takes about half a minute")
        target = self.target or embedded_target_folder()
        say(f"loading {names['target']} with {names['drafter']}")
        return Pair(*self._load(str(target), str(drafter)), names, known_thinking(str(drafter)))

    def chosen(self, say: Callable[[str], None] = lambda text: None) -> PairSource:
        """The same source with a drafter's name in the place of ``"auto"``; says which.

        Raises:
            OptionsError: none is known for this target.
        """
        from dflash_hf.pretrained.auto import choose_drafter

        if self.drafter != "auto":
            return self
        if self.target is None:
            return replace(self, drafter=None)  # the embedded target's is the embedded drafter
        choice = choose_drafter(self.target, local_files_only=self.local_files_only)
        say(choice.sentence(self.target, self.revision))
        return replace(self, drafter=choice.drafter)

    def _load(self, target: str, drafter: str) -> tuple[PreTrainedModel, DFlashDrafter, PreTrainedTokenizerBase]:
        from transformers import AutoTokenizer

        from dflash_hf.generation.pair import load_pair

        device = self.device_map or _accelerator()
        try:
            tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=self.local_files_only)
            model, loaded = load_pair(
                target,
                drafter,
                revision=self.revision,
                dtype=pick_dtype(self.dtype, device not in (None, "cpu")),
                device_map=device,
                attn_implementation=self.attn_implementation,
                local_files_only=self.local_files_only,
                quantization=self.quantization,
            )
        except OSError as error:  # transformers' word for "no such model": a long text, whose first line says it
            raise HubError(f"cannot load the target {target}: {str(error).strip().splitlines()[0]}") from error
        return model, loaded, tokenizer


def refuse_unknown_dtype(name: str) -> None:
    """
    Raises:
        OptionsError: it is none of ``DTYPES``.
    """
    if name not in DTYPES:
        raise OptionsError(f"dtype is one of {', '.join(DTYPES)}, not {name!r}")


def pick_dtype(name: str, accelerated: bool) -> Any:
    """What ``from_pretrained`` gets as ``dtype``: ``"auto"`` is the stored one on an accelerator, float32 on a CPU."""
    import torch

    if name == "auto":
        return "auto" if accelerated else torch.float32
    return getattr(torch, name)


def _accelerator() -> str | None:
    import torch

    device: torch.device | None = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if device is None else device.type
