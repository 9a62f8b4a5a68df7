"""Reader of transformers' own DFlash drafter, the Muse Glimmer assistant (``muse_glimmer_assistant``).

What changes at this border: two tensors are renamed; the window grows by one (transformers sees ``|q - k| <= W``, our
window counts the query itself); every layer is bidirectional; the block holds what the target's embedding module gives,
without the norm in it and the factors around it, and logits are the bare head's: so transformers' lane calls them.
Source: transformers 5.24, ``models/muse_glimmer_assistant`` and ``generation/candidate_generator.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints import zlab
from dflash_hf.checkpoints.body import read_body, read_layer_types, read_taps, read_windows
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.reading import Reading, canonical_names
from dflash_hf.config import DFlashConfig

__all__ = ["RENAMES", "read"]

RENAMES = (("encoder.fc.", "fc."), ("encoder.output_norm_enc.", "hidden_norm."))
_DEFAULTS: Mapping[str, Any] = {  # of transformers' MuseGlimmerAssistantConfig
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}
_WINDOW, _BLOCK_SIZE, _MASK, _TAPS = 2048, 16, 201818, [1, 13, 25, 37, 49]


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a Muse Glimmer assistant."""
    fields = Fields(config, "transformers' MuseGlimmerAssistantConfig")
    body = read_body(fields, _DEFAULTS)
    body["attention_bias"] = False  # the class has no biases; a file with some has tensors nobody reads
    layers = body["num_hidden_layers"]
    if fields.top.get("layer_types") is None:
        fields.filled("layer_types", f"{layers} x sliding_attention")
        sliding = [True] * layers
    else:
        sliding = read_layer_types(fields, layers)
    windows = read_windows(fields, sliding, default=_WINDOW)
    body["layer_windows"] = [None if window is None else window + 1 for window in windows]
    body["layer_causal"] = [False] * layers
    ids = fields.integers("target_layer_ids")
    body |= read_taps(fields, layers, fields.filled("target_layer_ids", _TAPS) if ids is None else ids, derive=False)
    body["block_size"] = fields.integer("block_size", _BLOCK_SIZE, minimum=2)
    body["mask_token_id"] = zlab.read_mask_token(fields, _MASK)
    body["embedding"] = zlab.read_block_embedding(fields, "target_module")
    body["inherits_logit_scale"] = fields.flag("inherit_logit_scale", None) or False  # our own key
    names = canonical_names(tensors, (*zlab.RENAMES, *RENAMES))
    return Reading(DFlashConfig(**body), names, defaults=tuple(fields.defaults), notes=tuple(fields.notes))
