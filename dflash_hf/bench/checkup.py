"""What a doctor looks at besides acceptance: the pair's devices, dtypes, attention, memory, and the target's cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dflash_hf.bench.pair import Pair
from dflash_hf.bench.provenance import describe_model
from dflash_hf.drafter.memory import context_bytes, weight_bytes
from dflash_hf.target.replay import state_of
from dflash_hf.target.state import cannot_crop
from dflash_hf.target.view import view_target

__all__ = ["cache_kind", "describe_pair"]


def describe_pair(pair: Pair) -> dict[str, Any]:
    """Both sides as they are loaded, and what of it is worth a remark."""
    drafter, found = pair.drafter, getattr(pair.drafter, "provenance", None)
    target, own = describe_model(pair.model), describe_model(drafter)
    remarks = []
    if drafter.dtype != pair.model.dtype and target["quantization"] is None:
        remarks.append(f"the drafter is in {own['dtype']}, the target in {target['dtype']}")
    if drafter.device.type != pair.device.type:
        remarks.append(f"the drafter is on {drafter.device}, the target on {pair.device}")
    return {
        "target": target,
        "drafter": {
            **own,
            "dialect": getattr(found, "dialect", None),
            "defaults": list(getattr(found, "defaults", ())),
            "notes": list(getattr(found, "notes", ())),
            "weights_bytes": weight_bytes(drafter),
            "context_bytes_per_1k_tokens": context_bytes(drafter.config, 1000, drafter.dtype),
        },
        "remarks": remarks,
    }


@torch.no_grad()
def cache_kind(model: Any, ids: Tensor) -> dict[str, Any]:
    """The cache the target makes for ids [1, S]: its class, its layers by kind, how it goes back or why it cannot."""
    cache = model(input_ids=ids[:, :2], use_cache=True).past_key_values
    kinds = [type(layer).__name__ for layer in getattr(cache, "layers", ())]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return {
        "class": type(cache).__name__,
        "layers": counts,
        "goes_back_by": state_of(view_target(model), cache).kind,
        "cannot_go_back": cannot_crop(cache),
    }
