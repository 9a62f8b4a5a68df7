"""Writes a checkpoint's files so that a save which is killed is never taken for a checkpoint.

config.json is what makes a folder a checkpoint: it goes first and comes back last. Every file is written beside its
place and moved there whole, so a drafter that is memory-mapped from the same folder keeps its old file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from dflash_hf.checkpoints.files import read_json
from dflash_hf.errors import CheckpointError

__all__ = ["write_checkpoint", "write_text"]

_WEIGHTS = "model.safetensors"
_OURS = frozenset(  # architectures of the layouts we write
    {
        "DFlashDraftModel",
        "DFlash2DraftModel",
        "DSparkDraftModel",
        "DominoDraftModel",
        "MuseGlimmerAssistantModel",
        "Qwen3DSparkModel",
    }
)


def write_checkpoint(folder: Path, config: Mapping[str, Any], state: Mapping[str, Tensor], card: str | None) -> None:
    """Write config.json, model.safetensors and README.md into ``folder``, replacing a checkpoint that is there.

    Raises:
        CheckpointError: ``folder`` is a file or holds another model, or a weight is not in memory (offloaded).
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; pass a folder to save into")
    if absent := [name for name, tensor in state.items() if tensor.device.type == "meta"]:
        raise CheckpointError(f"weights are not in memory ({', '.join(absent[:4])}, ...); move the drafter to a device")
    _refuse_another_model(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights, config_file = _beside(folder / _WEIGHTS), folder / "config.json"
    try:
        save_file(
            {name: tensor.detach().contiguous().cpu() for name, tensor in state.items()}, weights, {"format": "pt"}
        )
        config_file.unlink(missing_ok=True)
        _remove_old_shards(folder)
        os.replace(weights, folder / _WEIGHTS)
    finally:
        weights.unlink(missing_ok=True)
    if card is not None:
        write_text(folder / "README.md", card)
    write_text(config_file, json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def _refuse_another_model(folder: Path) -> None:
    """A drafter may replace a drafter; a folder with any other model in it is not ours to write into."""
    if not (folder / "config.json").is_file():
        return
    found = read_json(folder / "config.json").get("architectures") or ["a model without a name"]
    if not any(name in _OURS for name in found):
        raise CheckpointError(f"{folder} holds another model ({', '.join(map(str, found))}); pass another folder")


def _remove_old_shards(folder: Path) -> None:
    """An index left behind would point a reader at the old weights."""
    for index in folder.glob("*.safetensors.index.json"):
        shards = set(read_json(index).get("weight_map", {}).values())
        index.unlink()
        for shard in shards:
            if Path(shard).name == shard:
                (folder / shard).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Whole, or not at all."""
    part = _beside(path)
    try:
        part.write_text(text, encoding="utf-8", newline="")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")
