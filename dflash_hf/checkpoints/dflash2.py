"""Reader of z-lab's DFlash 2: v1 with convolutions around every sublayer and a selector among candidates.

Its codebooks lie in the files without ``.weight``. Source: z-lab/dflash at 1012959, ``dflash/model.py``, and the
headers of its published files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.own import read_own_parts
from dflash_hf.checkpoints.reading import Reading, canonical_names
from dflash_hf.checkpoints.zlab import RENAMES, finish, read_zlab_body

__all__ = ["SELECTOR", "TABLES", "read", "read_convolution", "read_selector", "with_weight"]

SELECTOR = (("candidate_selector.", "head."),)
TABLES = ("head.predecessor_codebook.weight", "head.successor_codebook.weight")


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a DFlash 2 checkpoint."""
    fields = Fields(config, "z-lab's DFlash 2 class")
    body = read_zlab_body(fields, swa=True)
    names = with_weight(canonical_names(tensors, (*RENAMES, *SELECTOR)))
    body["convolution"], body["head"] = read_convolution(fields), read_selector(fields)
    body |= read_own_parts(body, tensors, names, tables=TABLES)
    return finish(fields, body, names)


def read_convolution(fields: Fields) -> dict[str, int]:
    """The convolutions' shape."""
    return {
        "kernel_size": fields.integer("conv_kernel_size", 2, drafter=True),
        "group_size": fields.integer("conv_group_size", 16, drafter=True),
    }


def read_selector(fields: Fields) -> dict[str, Any]:
    """The selector's shape."""
    rank, top_k = (
        fields.integer(key, default, drafter=True) for key, default in (("selector_rank", 256), ("selector_top_k", 16))
    )
    return {"kind": "selector", "rank": rank, "top_k": top_k}


def with_weight(names: Mapping[str, str]) -> dict[str, str]:
    """Codebooks are published as bare tensors and are embeddings in memory."""
    return {name: f"{found}.weight" if found.endswith("_codebook") else found for name, found in names.items()}
