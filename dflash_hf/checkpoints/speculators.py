"""Reader of vllm-project/speculators' drafters: dflash, dspark and dflash2.

At this border: layer ids are the host's ``hidden_states`` indices, one higher than ours; the body's config lies in
``transformer_layer_config``; the embedding is the file's own and never scaled (a file without one means the raw rows of
its verifier's); the head may list some of the target's ids, as offsets in ``d2t``; a window is counted from the anchor.
Source: vllm-project/speculators at c05b95b, ``src/speculators/models``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dflash_hf.checkpoints.body import QWEN3_DEFAULTS, read_body, read_layer_types, read_windows
from dflash_hf.checkpoints.dflash2 import SELECTOR, TABLES, read_convolution, read_selector, with_weight
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.markov_keys import HEAD_NAMES, TABLE, read_markov
from dflash_hf.checkpoints.own import read_own_parts
from dflash_hf.checkpoints.reading import Made, Reading, canonical_names
from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError

__all__ = ["read"]

_BLOCK_SIZE, _MARKOV_RANK = 8, 256


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a speculators checkpoint of any of the three kinds."""
    kind = config["speculators_model_type"]
    fields, layer = Fields(config, "speculators' class"), _layer_fields(config)
    body = read_body(layer, QWEN3_DEFAULTS)
    sliding = read_layer_types(layer, body["num_hidden_layers"])
    body["layer_windows"] = read_windows(layer, sliding)
    free = fields.flag("sliding_window_non_causal", kind == "dflash2")
    body["layer_causal"] = [is_sliding and not free for is_sliding in sliding]
    body["window_rule"] = "anchor"
    body |= _read_taps(fields)
    body["block_size"] = fields.integer("block_size", _BLOCK_SIZE, minimum=2)
    body["mask_token_id"] = fields.integer("mask_token_id", minimum=0)
    body["first_slot"] = 0 if fields.flag("sample_from_anchor", kind == "dspark") else 1
    names = with_weight(canonical_names((name for name in tensors if name != "d2t"), (*HEAD_NAMES, *SELECTOR)))
    body["embedding"] = "target_rows"
    body |= _read_head(fields, kind, names) | read_own_parts(body, tensors, names, tables=(TABLE, *TABLES))
    _check_head(fields, body, tensors)
    fields.defaults.extend(layer.defaults)
    fields.notes.extend(layer.notes)
    made = _vocabulary(tensors, body)
    body["reduced_vocabulary"] = bool(made)
    body["target_name"] = (config.get("speculators_config") or {}).get("verifier", {}).get("name_or_path")
    return Reading(DFlashConfig(**body), names, made, tuple(fields.defaults), tuple(fields.notes))


def _layer_fields(config: Mapping[str, Any]) -> Fields:
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise CheckpointError("config.json: transformer_layer_config is missing; it describes the drafter's layers")
    if (model_type := layer.get("model_type", "qwen3")) != "qwen3":
        raise UnsupportedCheckpointError(
            f"config.json: the drafter's layers are {model_type!r}; this version builds 'qwen3' layers. vLLM runs "
            "others."
        )
    return Fields(layer, "the config class of transformer_layer_config")


def _read_taps(fields: Fields) -> dict[str, Any]:
    host = fields.integers("aux_hidden_state_layer_ids")
    if host is None:
        raise CheckpointError(
            "config.json has no aux_hidden_state_layer_ids; their default is [2, N // 2, N - 3] for a target of N "
            "layers, and the file does not say N: add them"
        )
    if min(host) < 0:
        raise CheckpointError(f"config.json: aux_hidden_state_layer_ids {host}: 0 is the embedding, and the lowest")
    return {
        "target_layer_ids": [index - 1 for index in host],
        "target_hidden_size": fields.integer("target_hidden_size", None),
        "num_target_layers": fields.integer("num_target_layers", None),  # only where our writer added it
        "last_tap": "raw",
    }


def _read_head(fields: Fields, kind: str, names: Mapping[str, str]) -> dict[str, Any]:
    if kind == "dspark":
        return {"head": read_markov(fields, names, _MARKOV_RANK)}
    if kind == "dflash2":
        return {"head": read_selector(fields), "convolution": read_convolution(fields)}
    return {}


def _check_head(fields: Fields, body: Mapping[str, Any], tensors: TensorTable) -> None:
    rows, stated = body.get("draft_vocab_size"), fields.integer("draft_vocab_size", None)
    if rows is not None and stated is not None and rows != stated:
        raise CheckpointError(f"config.json: draft_vocab_size is {stated}, but lm_head.weight has {rows} rows")
    if "d2t" in tensors and rows is None:
        raise CheckpointError("the files have d2t, which lists the ids of a head's rows, but no lm_head.weight")
    if "d2t" in tensors and tensors["d2t"].shape != (rows,):
        raise CheckpointError(f"d2t is {list(tensors['d2t'].shape)}, lm_head.weight has {rows} rows")
    if rows is not None and "d2t" not in tensors and body["vocab_size"] not in (None, rows):
        raise CheckpointError(
            f"lm_head.weight has {rows} rows of {body['vocab_size']} ids, and there is no d2t to say which"
        )


def _vocabulary(tensors: TensorTable, body: Mapping[str, Any]) -> dict[str, Made]:
    if "d2t" not in tensors:
        return {}
    limit = body["vocab_size"]

    def ids(offsets: Tensor) -> Tensor:
        found = torch.arange(len(offsets)) + offsets.long()
        if int(found.min()) < 0 or (limit is not None and int(found.max()) >= limit):
            raise CheckpointError(f"d2t points at ids {int(found.min())} to {int(found.max())} of {limit}")
        return found

    return {"vocabulary": Made("d2t", tensors["d2t"].shape, ids)}
