"""Reader of JetSpec's files: z-lab's layout whose blocks are causal on every layer.

An adapter maps each tap, by one matrix for all of them, before they are joined. Prediction is same-position: the
shift that JetSpec's adapter can do is an argument of its own, which no file carries. Source: hao-ai-lab/JetSpec at
2c7b3fa, ``jetspec/models/draft_head.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.contradictions import refuse_unread_window
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.reading import Reading, canonical_names
from dflash_hf.checkpoints.zlab import RENAMES, finish, read_zlab_body

__all__ = ["read"]

_ADAPTER = "fusion.adapter.weight"


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a JetSpec checkpoint."""
    fields = Fields(config, "JetSpec's writer")
    refuse_unread_window(fields)
    body = read_zlab_body(fields)
    if fields.flag("causal_head", False, drafter=True):
        body["layer_causal"] = [True] * body["num_hidden_layers"]
    names = canonical_names(tensors, (*RENAMES, ("hidden_dim_adapter.proj.", "fusion.adapter.")))
    if _ADAPTER in names.values():
        body["fusion"] = "adapter"
    return finish(fields, body, names)
