"""``--quantization``: from its word to what ``from_pretrained`` takes. Loads nothing until a target is quantised."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dflash_hf.errors import OptionsError

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig

__all__ = ["QUANTIZATIONS", "check_quantization", "quantization_config"]

QUANTIZATIONS = ("bnb-8bit", "bnb-4bit")


def check_quantization(name: str | None) -> None:
    """
    Raises:
        OptionsError: it is neither None nor one of ``QUANTIZATIONS``, or bitsandbytes is not installed.
    """
    if name is None:
        return
    if name not in QUANTIZATIONS:
        raise OptionsError(f"quantization is one of {', '.join(QUANTIZATIONS)}, not {name!r}")
    if find_spec("bitsandbytes") is None:
        raise OptionsError(
            f"quantization {name} needs bitsandbytes, which is not installed: pip install 'dflash-hf[quantize]'"
        )


def quantization_config(name: str, dtype: Any = "auto") -> BitsAndBytesConfig:
    """bitsandbytes' 8-bit integers (LLM.int8) or 4-bit NormalFloat, all else at its defaults.

    Args:
        name: one of ``QUANTIZATIONS``.
        dtype: what 4-bit layers multiply in, a ``torch.dtype`` or its name; "auto" is their input's.

    Raises:
        OptionsError: an unknown name, or bitsandbytes is not installed.
    """
    check_quantization(name)
    from transformers import BitsAndBytesConfig

    if name == "bnb-8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    known = {} if dtype in (None, "auto") else {"bnb_4bit_compute_dtype": dtype}
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", **known)
