"""What lies in a checkpoint's folder: config.json, and the names, shapes and dtypes of its tensors.

In: a local folder. Out: ``CheckpointFiles``; no weight is read here. Only safetensors; of pickles only
a mask's embedding (``mask_embedding``), as torch's restricted loader reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dflash_hf.checkpoints.mask_embedding import MASK_EMBEDDING, MASK_FILE, read_mask_file
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["CheckpointFiles", "Packed", "TensorInfo", "TensorTable", "read_json", "read_tensors", "survey"]

_SINGLE = "model.safetensors"
_INDEX = ".safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as its file's header describes it. ``dtype`` is safetensors' name: F32, BF16, F8_E4M3 ..."""

    shape: tuple[int, ...]
    dtype: str
    file: str


TensorTable = Mapping[str, TensorInfo]  # name in the file -> what its header says


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight that is put together from several tensors of the files when it is read (``dequantise``)."""

    sources: tuple[str, ...]  # names in the files, what holds the numbers first
    info: TensorInfo  # of the weight as it becomes
    make: Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """A folder surveyed.

    Args:
        folder: where the files lie.
        config: config.json.
        tensors: what the files hold; for a weight in ``packed``, what it becomes.
        packed: weights that are not in the files as they are in ``tensors``.
        notes: what was decided on the way, for the provenance.
        stored: where each tensor lies in the files; ``tensors`` itself where nothing is packed.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: TensorTable
    packed: Mapping[str, Packed] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    stored: TensorTable = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Files that were read, config first."""
        return ("config.json", *sorted({info.file for info in (self.stored or self.tensors).values()}))

    def read(self, names: set[str]) -> dict[str, Tensor]:
        """Tensors of ``tensors``, memory-mapped where they lie in the files as they are."""
        places = self.stored or self.tensors
        sources = {
            source for name in names for source in (self.packed[name].sources if name in self.packed else [name])
        }
        held: dict[str, Tensor] = {}
        for file in sorted({places[source].file for source in sources}):
            held |= read_tensors(self.folder / file, sorted(s for s in sources if places[s].file == file))
        return {name: self.packed[name].make(held) if name in self.packed else held[name] for name in names}


def survey(folder: Path) -> CheckpointFiles:
    """Read config.json and the headers of the safetensors files of ``folder``.

    Raises:
        CheckpointError: a file is missing, damaged or cut, or a tensor is in two files.
        UnsupportedCheckpointError: the weights are pickles.
    """
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} has no config.json, so it is no checkpoint; pass a folder that save_pretrained wrote, or a "
            "Hub id (with subfolder= when the drafter lies inside another repository)."
        )
    config = read_json(folder / "config.json")
    tensors: dict[str, TensorInfo] = {}
    for name in _weight_files(folder):
        for tensor, info in _header(folder / name).items():
            if tensor in tensors:
                raise CheckpointError(f"{folder}: tensor {tensor} is both in {tensors[tensor].file} and in {name}")
            tensors[tensor] = info
    if (folder / MASK_FILE).is_file():
        config = _with_mask(folder, config, tensors)
    return CheckpointFiles(folder, config, tensors)


def read_tensors(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Tensors of one file."""
    if path.name == MASK_FILE:
        return {MASK_EMBEDDING: read_mask_file(path)[0]}
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged ({error}); delete it and download or save it again.") from error


def _with_mask(folder: Path, config: dict[str, Any], tensors: dict[str, TensorInfo]) -> dict[str, Any]:
    """Add the mask's own embedding to ``tensors``, and its id to the config, which must not say another."""
    row, mask = read_mask_file(folder / MASK_FILE)
    if MASK_EMBEDDING in tensors:
        raise CheckpointError(
            f"{folder}: {MASK_EMBEDDING} is both in {tensors[MASK_EMBEDDING].file} and in {MASK_FILE}"
        )
    tensors[MASK_EMBEDDING] = TensorInfo(tuple(row.shape), _DTYPES.get(row.dtype, str(row.dtype)), MASK_FILE)
    nested = config.get("dflash_config") if isinstance(config.get("dflash_config"), Mapping) else {}
    assert isinstance(nested, Mapping)
    said = nested.get("mask_token_id") if nested.get("mask_token_id") is not None else config.get("mask_token_id")
    if said is not None and said != mask:
        raise CheckpointError(f"{folder}: config.json has mask_token_id {said}, {MASK_FILE} has {mask}")
    return config | {"dflash_config": {**nested, "mask_token_id": mask}}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or a CheckpointError that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); fetch or write it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, a JSON object is needed.")
    return value


def _weight_files(folder: Path) -> list[str]:
    """The index file decides where there is one; then model.safetensors; then every safetensors file."""
    indices = sorted(path.name for path in folder.glob(f"*{_INDEX}"))
    if len(indices) > 1:
        raise CheckpointError(
            f"{folder} has {len(indices)} index files ({', '.join(indices)}); keep the one that holds."
        )
    if indices:
        return _indexed_files(folder, indices[0])
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if found:
        return found
    if pickles := sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES):
        raise UnsupportedCheckpointError(
            f"{folder} has no safetensors, only pickles ({', '.join(pickles)}), which can run code and are never "
            "opened; convert them to safetensors with the tool that wrote them."
        )
    raise CheckpointError(f"{folder} has a config.json but no *.safetensors file; the weights are missing.")


def _indexed_files(folder: Path, index: str) -> list[str]:
    weight_map = read_json(folder / index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / index} has no weight_map; fetch or write it again.")
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if not isinstance(name, str) or Path(name).name != name]:
        raise CheckpointError(f"{folder / index} points outside its folder: {outside}")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(f"{folder / index} names {', '.join(missing)}, which is not there; fetch it again.")
    held = {tensor for name in names for tensor in _header(folder / name)}
    if lost := sorted(set(weight_map) - held):
        raise CheckpointError(f"{folder / index} promises tensors that no file holds: {', '.join(lost[:8])}")
    return names


def _header(path: Path) -> dict[str, TensorInfo]:
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return {
                name: TensorInfo(tuple(part.get_shape()), part.get_dtype(), path.name) for name, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or cut short ({error}); delete it and download or save it again."
        ) from error
