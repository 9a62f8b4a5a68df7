"""From a reading and its files to a drafter with weights: nothing missing, nothing left over, nothing of another shape.

The network is made on the meta device, so that no weight is initialised only to be replaced; weights come
memory-mapped out of the safetensors files and are cast or moved only when asked.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from dflash_hf.checkpoints.files import CheckpointFiles, TensorTable
from dflash_hf.checkpoints.reading import Reading, is_surplus
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import CheckpointError

__all__ = ["assemble", "stored_dtype"]

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def assemble(files: CheckpointFiles, reading: Reading, *, dtype: torch.dtype, device: torch.device) -> DFlashDrafter:
    """Build the drafter and fill every parameter from the files.

    Raises:
        CheckpointError: with the list of tensors that are missing, unread or of another shape than the config says.
    """
    with torch.device("meta"):
        drafter = DFlashDrafter(reading.config)
    wanted = {name: tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}
    if problems := _misfits(wanted, files.tensors, reading):
        raise CheckpointError(f"{files.folder}: config.json and the tensors do not match: " + "; ".join(problems))
    drafter.load_state_dict(_weights(files, reading, dtype, device), strict=True, assign=True)
    # Anew: on the meta device its frequencies had no values.
    drafter.make_rotary()
    drafter.rotary_emb.to(device)
    drafter.context_rotary_emb.to(device)
    return drafter.eval()


def stored_dtype(tensors: TensorTable) -> torch.dtype:
    """What the weights are stored in; of several dtypes the one that holds most numbers."""
    counts: dict[str, int] = defaultdict(int)
    for info in tensors.values():
        if info.dtype in _DTYPES:
            counts[info.dtype] += torch.Size(info.shape).numel()
    if not counts:
        raise CheckpointError("the files hold no floating-point weight")
    return _DTYPES[max(counts, key=lambda name: counts[name])]


def _misfits(wanted: dict[str, tuple[int, ...]], tensors: TensorTable, reading: Reading) -> list[str]:
    problems = []
    found = {canonical: tensors[name].shape for name, canonical in reading.names.items()}
    found |= {canonical: made.shape for canonical, made in reading.made.items()}
    if missing := sorted(wanted.keys() - found.keys()):
        problems.append(f"missing in the files: {_some(missing)}")
    used = {*reading.names, *reading.left, *_sources(reading)}
    surplus = {name for name in tensors if name not in used and not is_surplus(name)}
    surplus |= {name for name, canonical in reading.names.items() if canonical not in wanted}
    surplus |= {made.source for canonical, made in reading.made.items() if canonical not in wanted}
    if surplus:
        problems.append(f"in the files, but read by nothing: {_some(sorted(surplus))}")
    shapes = [
        f"{name} is {list(found[name])} in the files, {list(wanted[name])} by the config"
        for name in sorted(wanted.keys() & found.keys())
        if found[name] != wanted[name]
    ]
    if shapes:
        problems.append(_some(shapes))
    if "fusion.fc.weight" in wanted.keys() & found.keys() and found["fusion.fc.weight"] != wanted["fusion.fc.weight"]:
        config = reading.config
        problems.append(
            f"fc.weight must take {len(config.target_layer_ids)} taps (target_layer_ids {config.target_layer_ids}) of "
            f"width {config.target_hidden_size} side by side"
        )
    return problems


def _some(names: list[str], most: int = 12) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _sources(reading: Reading) -> set[str]:
    """Names in the files of what tensors are made from."""
    return {name for made in reading.made.values() for name in (made.source, *made.beside)}


def _weights(files: CheckpointFiles, reading: Reading, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    stored = files.read({*reading.names, *_sources(reading)})
    state = {canonical: stored[name] for name, canonical in reading.names.items()}
    state |= {
        canonical: made.make(*(stored[name] for name in (made.source, *made.beside)))
        for canonical, made in reading.made.items()
    }
    return {
        name: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in state.items()
    }
