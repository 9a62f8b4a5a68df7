"""Reader of NVIDIA Model-Optimizer's DFlash export: z-lab's layout with its own way to say "windowed".

``dflash_config.use_swa`` windows every layer while ``layer_types`` stays ``full_attention``, bidirectional unless
``dflash_config.causal`` says otherwise. Its window lies on the context alone (key > query - W); inside the block
nothing is cut. That is z-lab's rule as long as the block is no longer than the window.
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
from dflash_hf.checkpoints.zlab import RENAMES, finish
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["read"]


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a Model-Optimizer export. Its exporter states block size and taps, so neither has a default."""
    fields = Fields(config, "Model-Optimizer's exporter")
    body = read_body(fields, QWEN3_DEFAULTS)
    layers = body["num_hidden_layers"]
    body["block_size"] = fields.integer("block_size", minimum=2, drafter=True)
    window = _read_window(fields, layers)
    body["layer_windows"] = [window] * layers
    if window is not None and window < body["block_size"]:
        body["window_rule"] = "context"
    body["layer_causal"] = [bool(said_causal(fields))] * layers
    body |= read_taps(fields, layers, fields.integers("target_layer_ids"), derive=False)
    _note_theta(fields, body)
    return finish(fields, body, canonical_names(tensors, RENAMES))


def _read_window(fields: Fields, layers: int) -> int | None:
    sliding = read_layer_types(fields, layers)
    if not fields.flag("use_swa", None, drafter=True):
        if any(sliding):
            raise CheckpointError(
                "config.json: layer_types has sliding layers, but dflash_config.use_swa is not true; "
                "Model-Optimizer windows all layers or none"
            )
        return None
    if any(sliding) and not all(sliding):
        raise UnsupportedCheckpointError(
            "config.json: dflash_config.use_swa is true and only some layer_types are sliding; Model-Optimizer writes "
            "no such file, and engines disagree on what it means"
        )
    window = fields.integer("swa_window_size", None, drafter=True) or fields.integer("sliding_window", None)
    if window is None:
        raise CheckpointError(
            "config.json: dflash_config.use_swa is true, but swa_window_size and sliding_window are missing"
        )
    return window


def _note_theta(fields: Fields, body: Mapping[str, Any]) -> None:
    if body["rope_parameters"]["rope_theta"] == 1e6:
        fields.notes.append(
            "rope_theta=1000000 may not be what was trained: under transformers 5 Model-Optimizer trained with 10000 "
            "and exported the target's value; compare acceptance if it is low"
        )
