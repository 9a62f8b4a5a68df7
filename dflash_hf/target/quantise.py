"""``--quantization``: from its word to what ``from_pretrained`` takes. Loads nothing until a target is quantised."""

from __future__ import annotations

from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any

from dflash_hf.errors import OptionsError

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig

__all__ = ["QUANTIZATIONS", "check_quantization", "quantization_config", "stored_dtype"]

QUANTIZATIONS = ("bnb-8bit", "bnb-4bit")
_WHERE = {"revision", "local_files_only", "token", "cache_dir", "subfolder", "trust_remote_code"}


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


def quantization_config(name: str, dtype: Any = None) -> BitsAndBytesConfig:
    """bitsandbytes' 8-bit integers (LLM.int8) or 4-bit NormalFloat, all else at its defaults.

    Args:
        name: one of ``QUANTIZATIONS``.
        dtype: what 4-bit layers multiply in, a ``torch.dtype`` or its name; None is float32, as in transformers. What
            ``dtype="auto"`` loads in, :func:`stored_dtype` knows.

    Raises:
        OptionsError: an unknown name, or bitsandbytes is not installed.
    """
    check_quantization(name)
    from transformers import BitsAndBytesConfig

    if name == "bnb-8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def stored_dtype(target: str | PathLike[str], dtype: Any, **loading: Any) -> Any:
    """``dtype``, with "auto" and None resolved as loading will: to what the checkpoint's config names, if anything.

    Args:
        target: a Hub id or a folder.
        dtype: what ``from_pretrained`` gets.
        loading: its further arguments; those that say where the config is are used.

    Raises:
        OSError: no config there.
    """
    if dtype not in (None, "auto"):
        return dtype
    from transformers import AutoConfig

    where = {name: loading[name] for name in _WHERE & loading.keys()}
    config = loading.get("config") or AutoConfig.from_pretrained(target, **where)
    return config.dtype or config.get_text_config().dtype
