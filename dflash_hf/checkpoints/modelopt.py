"""Reader of NVIDIA Model-Optimizer's plain DFlash export: z-lab's layout with its own way to say "windowed" (``swa``).

Its Domino, DSpark and DFlash 2 exports are read by those dialects' readers.
Source: NVIDIA/Model-Optimizer at a2fbac7, ``modelopt/torch/export/plugins/hf_spec_export.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.body import QWEN3_DEFAULTS, read_body, read_layer_types, read_taps
from dflash_hf.checkpoints.contradictions import said_causal
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.reading import Reading, canonical_names
from dflash_hf.checkpoints.swa import read_swa
from dflash_hf.checkpoints.zlab import RENAMES, finish
from dflash_hf.errors import CheckpointError

__all__ = ["read"]


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a Model-Optimizer export. Its exporter states block size and taps, so neither has a default."""
    fields = Fields(config, "Model-Optimizer's exporter")
    body = read_body(fields, QWEN3_DEFAULTS)
    layers = body["num_hidden_layers"]
    body["block_size"] = fields.integer("block_size", minimum=2, drafter=True)
    body |= _read_attention(fields, layers, body["block_size"])
    body |= read_taps(fields, layers, fields.integers("target_layer_ids"), derive=False)
    _note_theta(fields, body)
    return finish(fields, body, canonical_names(tensors, RENAMES))


def _read_attention(fields: Fields, layers: int, block_size: int) -> dict[str, Any]:
    sliding = read_layer_types(fields, layers)
    if (windowed := read_swa(fields, sliding, block_size)) is not None:
        return windowed
    if any(sliding):
        raise CheckpointError(
            "config.json: layer_types has sliding layers, but dflash_config.use_swa is not true; "
            "Model-Optimizer windows all layers or none"
        )
    return {"layer_windows": [None] * layers, "layer_causal": [bool(said_causal(fields))] * layers}


def _note_theta(fields: Fields, body: Mapping[str, Any]) -> None:
    if body["rope_parameters"]["rope_theta"] == 1e6:
        fields.notes.append(
            "rope_theta=1000000 may not be what was trained: under transformers 5 Model-Optimizer trained with 10000 "
            "and exported the target's value; compare acceptance if it is low"
        )
