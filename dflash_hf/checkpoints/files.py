"""What lies in a checkpoint's folder: config.json, and the names, shapes and dtypes of its tensors.

In: a local folder. Out: ``CheckpointFiles``; no weight is read here. Only safetensors, never a pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["CheckpointFiles", "TensorInfo", "TensorTable", "read_json", "survey"]

_SINGLE = "model.safetensors"
_INDEX = ".safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as its file's header describes it. ``dtype`` is safetensors' name: F32, BF16, F8_E4M3 ..."""

    shape: tuple[int, ...]
    dtype: str
    file: str


TensorTable = Mapping[str, TensorInfo]  # name in the file -> what its header says


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """A folder surveyed."""

    folder: Path
    config: Mapping[str, Any]
    tensors: TensorTable

    @property
    def names(self) -> tuple[str, ...]:
        """Files that were read, config first."""
        return ("config.json", *sorted({info.file for info in self.tensors.values()}))


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
    return CheckpointFiles(folder, config, tensors)


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
