"""Quantised files as if they were not: which weights are put together from what, before anybody looks for a dialect.

In: a survey. Out: the same survey with plain weights in the table, and how each is made when it is read. FP8 (a scale
by tensor, row or block), 8-bit integers and compressed-tensors' packed 4- and 8-bit integers; everything else is
refused by name. Activation and cache scales are left alone: a drafter here computes in plain floats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from dflash_hf.checkpoints.files import CheckpointFiles, Packed, TensorInfo, read_tensors
from dflash_hf.checkpoints.quantised_kinds import Scheme, foreign_kind, read_schemes
from dflash_hf.checkpoints.refused import REFUSED
from dflash_hf.checkpoints.unpack import dequantised, unpacked
from dflash_hf.errors import UnsupportedCheckpointError

__all__ = ["plain_files"]

_PLAIN = {"F64", "F32", "F16", "BF16"}
_HELD = {"F8_E4M3", "F8_E5M2", "I8"}
_NAMED = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_PART = re.compile(r"\.(weight_packed|weight_scale_inv|weight_scale|weight_zero_point|weight_shape|weight_g_idx)$")
_UNUSED = re.compile(
    r"\.(input_scale(_ub)?|input_zero_point|input_global_scale|activation_scale|output_scale|[qkv]_scale)$"
)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Tensors of one weight: part -> name in the files."""

    module: str
    names: Mapping[str, str]

    def __contains__(self, part: str) -> bool:
        return part in self.names

    def refused(self, why: str) -> UnsupportedCheckpointError:
        return _refused(f"{self.module}: {why}")


def plain_files(files: CheckpointFiles) -> CheckpointFiles:
    """``files`` with every quantised weight in the table as the plain one it becomes; themselves, where none is.

    Raises:
        UnsupportedCheckpointError: a kind of quantisation that is not taken apart here.
    """
    said = files.config.get("quantization_config") or files.config.get("compression_config")
    small = [name for name, info in files.tensors.items() if name.endswith("weight") and info.dtype not in _PLAIN]
    if (kind := foreign_kind(said, files.tensors)) is not None:
        raise _refused(kind)
    if said is None and not small and not any(map(_PART.search, files.tensors)):
        return files
    config = {key: v for key, v in files.config.items() if key not in ("quantization_config", "compression_config")}
    modules = _modules(files, small)
    if not modules:
        note = "quantization_config not used: all weights in the files are plain floats"
        return replace(files, config=config, notes=(*files.notes, note))
    schemes, dtype = read_schemes(said), _plain_dtype(files, modules)
    packed = {f"{parts.module}.weight": _planned(parts, files, schemes, dtype) for parts in modules}
    used = {name for parts in modules for name in parts.names.values()}
    unused = sorted(name for name in files.tensors if _UNUSED.search(name))
    tensors = {name: info for name, info in files.tensors.items() if name not in used and name not in unused}
    tensors |= {name: part.info for name, part in packed.items()}
    kinds = ", ".join(sorted({files.tensors[name].dtype for part in packed.values() for name in part.sources[:1]}))
    notes = [f"{len(packed)} quantised weights ({kinds}) are dequantised at loading"]
    if unused:
        notes.append(f"{len(unused)} scales of activations and caches are not used")
    said_on_the_way = (*files.notes, *notes)
    return replace(files, config=config, tensors=tensors, packed=packed, notes=said_on_the_way, stored=files.tensors)


def _refused(why: str) -> UnsupportedCheckpointError:
    return UnsupportedCheckpointError(f"this is {REFUSED['quantised']} ('quantised'): {why}")


def _modules(files: CheckpointFiles, small: list[str]) -> list[_Parts]:
    found: dict[str, dict[str, str]] = {}
    for name in small:
        found.setdefault(name.removesuffix(".weight"), {})["weight"] = name
    for name in files.tensors:
        if (match := _PART.search(name)) is not None:
            found.setdefault(name[: match.start()], {})[match[1]] = name
    for module, names in found.items():
        if "weight" not in names and f"{module}.weight" in files.tensors:
            dtype = files.tensors[f"{module}.weight"].dtype
            raise _refused(f"{module}: a weight stored as {dtype} beside {', '.join(sorted(names))}")
    return [_Parts(module, found[module]) for module in sorted(found)]


def _plain_dtype(files: CheckpointFiles, modules: list[_Parts]) -> str:
    """What the config says the weights are computed in, else what the other tensors are stored in."""
    said = files.config.get("dtype") or files.config.get("torch_dtype")
    if isinstance(said, str) and said.removeprefix("torch.") in _NAMED:
        return _NAMED[said.removeprefix("torch.")]
    used = {name for parts in modules for name in parts.names.values()}
    others = [info.dtype for name, info in files.tensors.items() if name not in used and info.dtype in _PLAIN]
    return max(sorted(set(others)), key=others.count) if others else "BF16"


def _planned(parts: _Parts, files: CheckpointFiles, schemes: list[Scheme], dtype: str) -> Packed:
    scale_part = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
    if scale_part not in parts:
        raise parts.refused(f"{', '.join(sorted(parts.names))} without weight_scale")
    scale = files.tensors[parts.names[scale_part]]
    scheme = _scheme_of(parts, schemes)
    if "weight_packed" in parts:
        shape, source, bits = _packed_shape(parts, files, scheme)
    else:
        info, source, bits = files.tensors[parts.names["weight"]], parts.names["weight"], None
        if info.dtype not in _HELD or len(info.shape) != 2:
            raise parts.refused(f"a weight of shape {list(info.shape)} stored as {info.dtype}")
        shape = (info.shape[0], info.shape[1])
    if {"weight_scale", "weight_scale_inv"} <= parts.names.keys():
        raise parts.refused("weight_scale and weight_scale_inv for one weight")
    if scale.dtype not in _PLAIN:
        raise parts.refused(f"scales stored as {scale.dtype} (the MX formats)")
    table, block = _blocks(parts, shape, scale.shape, scheme)
    if scheme is not None and not scheme.symmetric and "weight_zero_point" not in parts:
        raise parts.refused("quantization_config says asymmetric, but there is no weight_zero_point")
    sources = (source, parts.names[scale_part], *(parts.names[p] for p in _OPTIONAL if p in parts))
    make = _maker(parts, shape, block, table, bits, parts.names[scale_part])
    return Packed(sources, TensorInfo(shape, dtype, files.tensors[source].file), make)


_OPTIONAL = ("weight_zero_point", "weight_g_idx")


def _scheme_of(parts: _Parts, schemes: list[Scheme]) -> Scheme | None:
    """The one scheme there is. Of several, targets would have to be matched to modules, which nobody checks here."""
    if len(schemes) > 1:
        raise parts.refused(f"quantization_config has {len(schemes)} schemes for different layers")
    return schemes[0] if schemes else None


def _packed_shape(
    parts: _Parts, files: CheckpointFiles, scheme: Scheme | None
) -> tuple[tuple[int, int], str, int | None]:
    source = parts.names["weight_packed"]
    info = files.tensors[source]
    if scheme is None or scheme.bits not in (4, 8) or info.dtype != "I32" or "weight_shape" not in parts:
        bits = None if scheme is None else scheme.bits
        raise parts.refused(
            f"weight_packed stored as {info.dtype} with {bits} bits; int32 words of 4- or 8-bit integers beside a "
            "weight_shape are described"
        )
    name = parts.names["weight_shape"]
    rows, columns = (int(n) for n in read_tensors(files.folder / files.tensors[name].file, [name])[name].tolist())
    if info.shape != (rows, -(-columns * scheme.bits // 32)):
        raise parts.refused(f"weight_packed is {list(info.shape)}, weight_shape says {rows} x {columns}")
    return (rows, columns), source, scheme.bits


def _blocks(
    parts: _Parts, shape: tuple[int, int], scale: tuple[int, ...], scheme: Scheme | None
) -> tuple[tuple[int, int], tuple[int, int]]:
    """The scale as a table [rows, columns], and the block of the matrix that each entry of it covers."""
    rows, columns = shape
    if all(size == 1 for size in scale):
        return (1, 1), (rows, columns)
    if scale in ((rows,), (rows, 1)) and (scheme is None or scheme.block is None or scheme.block[1] >= columns):
        return (rows, 1), (1, columns)
    block = None if scheme is None else scheme.block
    if block is None or len(scale) != 2:
        raise parts.refused(
            f"scales of shape {list(scale)} for a weight of {rows} x {columns}, and quantization_config has no "
            "weight_block_size, block_structure or group_size that says what they cover"
        )
    table = (-(-rows // block[0]), -(-columns // block[1]))
    if scale != table:
        raise parts.refused(
            f"scales of shape {list(scale)}, but blocks of {block[0]} x {block[1]} make {list(table)} of a weight of "
            f"{rows} x {columns}"
        )
    return table, block


def _maker(
    parts: _Parts,
    shape: tuple[int, int],
    block: tuple[int, int],
    table: tuple[int, int],
    bits: int | None,
    scale_name: str,
) -> Callable[[Mapping[str, Tensor]], Tensor]:
    names = parts.names

    def make(held: Mapping[str, Tensor]) -> Tensor:
        matrix = unpacked(held[names["weight_packed"]], bits, shape[1]) if bits else held[names["weight"]]
        zero = held.get(names.get("weight_zero_point", ""))
        if zero is not None and bits:  # packed along the rows
            zero = unpacked(zero.T.contiguous(), bits, table[0]).T
        order = held.get(names.get("weight_g_idx", ""))
        if order is not None and bool((order < 0).all()):
            order = None
        zero = None if zero is None else zero.reshape(table)
        return dequantised(matrix, held[scale_name].reshape(table), block, zero, order)

    return make
