"""``mask_embedding.pt``: a mask's embedding in a file of its own, as Xiaomi's MiMo drafters ship it.

The one pickle that is read, and only as torch's restricted loader reads it: a dictionary of exactly two entries, the
embedding and the mask's id. Source: vllm-project/vllm pull request 46104.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dflash_hf.errors import CheckpointError

__all__ = ["MASK_EMBEDDING", "MASK_FILE", "read_mask_file"]

MASK_FILE = "mask_embedding.pt"
MASK_EMBEDDING = "mask_embedding"  # the parameter in memory, and what the file's tensor is called in a survey
_KEYS = {"embedding", "mask_token_id"}
_MOST_BYTES = 16 * 2**20  # a row of numbers; a file beyond this is something else


def read_mask_file(path: Path) -> tuple[Tensor, int]:
    """The mask's embedding [D] and its id.

    Raises:
        CheckpointError: the file is too large, damaged, holds objects that are no tensors, or other entries.
    """
    what = f"{path} must hold a dictionary of an embedding (one row of floats) and a mask_token_id, and nothing else"
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise CheckpointError(f"{path} has {size} bytes; {what}")
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged pickle makes torch raise
        said = str(error).partition("\n")[0]
        raise CheckpointError(f"{what}; it cannot be read as that ({said}), and no other pickle is opened") from error
    if not isinstance(held, dict) or set(held) != _KEYS:
        found = sorted(map(str, held)) if isinstance(held, dict) else type(held).__name__
        raise CheckpointError(f"{what}; found {found}")
    row, mask = held["embedding"], held["mask_token_id"]
    if isinstance(mask, Tensor) and mask.numel() == 1 and not mask.is_floating_point():
        mask = int(mask)
    if isinstance(mask, bool) or not isinstance(mask, int) or mask < 0:
        raise CheckpointError(f"{what}; its mask_token_id is {mask!r}")
    dense = isinstance(row, Tensor) and row.layout == torch.strided and row.is_floating_point()
    if not dense or not row.dim() or row.numel() != row.shape[-1] or not bool(torch.isfinite(row).all()):
        shape = f"{list(row.shape)} of {row.dtype}" if isinstance(row, Tensor) else type(row).__name__
        raise CheckpointError(f"{what}; its embedding is {shape}")
    return row.flatten().contiguous(), mask
