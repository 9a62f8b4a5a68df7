"""Kinds of quantisation by what the files show: schemes that are taken apart here, and foreign ones by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.errors import CheckpointError

__all__ = ["Scheme", "foreign_kind", "read_schemes"]

# By tensor names first: what a file holds is not always what its config says.
_FOREIGN_TENSORS = (
    (r"\.(weight_global_scale|weight_scale_2)$", "NVFP4 (four-bit floats under two levels of scales); vLLM, SGLang and "
     "TensorRT-LLM run such files"),
    (r"\.(qweight|qzeros)$", "GPTQ or AWQ (packed integers in an engine's order); vLLM and SGLang run such files"),
    (r"\.(absmax|quant_map|nested_absmax)$|\.quant_state\.", "bitsandbytes; load the target so, not the drafter"),
    (r"\.scales$", "MLX (packed integers, scales and biases); mlx-vlm and z-lab's MLX code run such files"),
    (r"\.(trellis|suh|svh)$", "EXL3; exllamav3 runs such files"),
    (r"\.(bitmask|compressed|row_offsets)$", "compressed-tensors with sparse weights; vLLM runs such files"),
)  # fmt: skip
_FOREIGN_WORDS = (
    (r"nvfp4", "NVFP4 (four-bit floats under two levels of scales); vLLM, SGLang and TensorRT-LLM run such files"),
    (r"mxfp|mx_fp", "an MX format (scales that are powers of two); vLLM and SGLang run such files"),
    (r"gptq|marlin", "GPTQ (packed integers in an engine's order); vLLM and SGLang run such files"),
    (r"awq", "AWQ (packed integers in an engine's order); vLLM and SGLang run such files"),
    (r"bitsandbytes|bnb", "bitsandbytes; load the target so, not the drafter"),
    (r"sparse|bitmask", "compressed-tensors with sparse weights; vLLM runs such files"),
)
_WORDS = ("quant_method", "format", "quant_algo")
_KEEPS_FLOATS = re.compile(r"(?i)fp8|float|int|pack|modelopt|compressed|naive|dense")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How weights are stored, as far as tensors do not say it."""

    bits: int
    symmetric: bool
    block: tuple[int, int] | None  # rows and columns that share a scale; None: a tensor or a row


def foreign_kind(said: Any, tensors: TensorTable) -> str | None:
    """The name of a quantisation that is not taken apart here, with who runs it; None where there is none."""
    for pattern, kind in _FOREIGN_TENSORS:
        if any(re.search(pattern, name) for name in tensors):
            return kind
    quantised = any(info.dtype in ("U8", "I8", "I32", "F8_E4M3", "F8_E5M2") for info in tensors.values())
    words = " ".join(str(said.get(key)) for key in _WORDS if said.get(key)) if isinstance(said, Mapping) else ""
    for pattern, kind in _FOREIGN_WORDS:
        if quantised and re.search(pattern, words, re.IGNORECASE):
            return kind
    if quantised and words and not _KEEPS_FLOATS.search(words):
        return f"{words!r}, which nobody described here"
    return None


def read_schemes(said: Any) -> list[Scheme]:
    """The schemes of a ``quantization_config``: transformers' FP8, or compressed-tensors' groups; without equal ones.

    Raises:
        CheckpointError: a scheme that cannot be read.
    """
    if not isinstance(said, Mapping):
        return []
    if (size := said.get("weight_block_size")) is not None:
        return [Scheme(8, True, _pair(size, "weight_block_size"))]
    groups = said.get("config_groups")
    if not isinstance(groups, Mapping):
        return []
    found: list[Scheme] = []
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            continue
        scheme = _read_group(name, weights)
        if scheme not in found:
            found.append(scheme)
    return found


def _read_group(name: str, weights: Mapping[str, Any]) -> Scheme:
    bits, size = weights.get("num_bits"), weights.get("group_size")
    where = f"quantization_config.config_groups.{name}"
    if isinstance(bits, bool) or not isinstance(bits, int):
        raise CheckpointError(f"config.json: {where}.weights.num_bits is {bits!r}; a whole number is needed")
    block = None
    if weights.get("block_structure") is not None:
        block = _pair(weights["block_structure"], f"{where}.weights.block_structure")
    elif size is not None and size != -1:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise CheckpointError(f"config.json: {where}.weights.group_size is {size!r}; a positive number is needed")
        block = (1, size)
    return Scheme(bits, weights.get("symmetric") is not False, block)


def _pair(value: Any, key: str) -> tuple[int, int]:
    parts = re.findall(r"\d+", value) if isinstance(value, str) else value
    try:
        rows, columns = (int(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: {key} is {value!r}; two sizes are needed") from error
    if rows < 1 or columns < 1:
        raise CheckpointError(f"config.json: {key} is {value!r}; two positive sizes are needed")
    return rows, columns
