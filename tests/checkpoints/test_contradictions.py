"""Keys that contradict what a file is read as are errors: such a drafter would be off by one, or lack a part."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from dflash_hf.checkpoints.files import TensorInfo
from dflash_hf.errors import CheckpointError
from tests.checkpoints.tiny import MASK, tiny_config, tiny_tensors

HEAD = {"block_size": 4, "mask_token_id": MASK, "target_layer_ids": [1, 3]}
DOMINO = {"pure_draft_prefix_len": 1, "gru_hidden_dim": 4, "emb_dim": 4}
# reader, nested keys, what the error says
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "JetSpec that shifts": ("jetspec", {"causal_head": True, "shift_label": True}, "shift_label is True"),
    "DFlash 2 from the anchor": ("dflash2", {"sample_from_anchor": True}, "sample_from_anchor is True"),
    "DSpark that does not shift": ("dspark", {"markov_rank": 0, "shift_label": False}, "shift_label is False"),
    "DSpark not from the anchor": ("dspark", {"markov_rank": 0, "sample_from_anchor": False}, "slot 0 proposes"),
    "Domino that contradicts itself": (
        "domino",
        {"shift_label": True, "sample_from_anchor": False, **DOMINO},
        "sample_from_anchor is False",
    ),
    "JetSpec with a window nobody describes": ("jetspec", {"causal_head": True, "use_swa": True}, "use_swa"),
    "AngelSpec from the anchor": ("angel", {"sample_from_anchor": True}, "sample_from_anchor is True"),
    "DFlare by name alone": ("angel", {"model_arch": "dflare"}, "model_arch is 'dflare', but the files have no tensor"),
    "a gated sum by name alone": ("angel", {"fusion_type": "gated_sum"}, "fusion_type is 'gated_sum'"),
    "DFly by name alone": ("angel", {"enable_hidden_correction": True}, "enable_hidden_correction is True"),
    "an unknown fusion": ("angel", {"fusion_type": "weird"}, "fusion_type is 'weird', but 'concat_fc' or 'gated_sum'"),
    "an unknown variant": ("angel", {"model_arch": "dfluff"}, "model_arch is 'dfluff', but 'dflash' or 'dflare'"),
    "DFly by name alone, too": ("angel", {"model_arch": "dfly"}, "model_arch is 'dfly', but the files have no tensor"),
    "AngelSpec causal and not": ("angel", {"is_causal": True, "causal": False}, "contradicts itself"),
    "Model-Optimizer causal and not": ("modelopt", {"is_causal": True, "causal": False}, "contradicts itself"),
    "sinks causal and not": ("sinks", {"is_causal": True, "causal": False}, "contradicts itself"),
    "an unknown projector": ("zlab", {"projector_type": "weird"}, "projector_type is 'weird'"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_contradiction_is_an_error(case: str) -> None:
    reader, nested, message = CASES[case]
    read = import_module(f"dflash_hf.checkpoints.{reader}").read
    config = tiny_config() | {"dflash_config": HEAD | nested}
    table = {name: TensorInfo(tuple(t.shape), "F32", "f") for name, t in tiny_tensors(config).items()}
    with pytest.raises(CheckpointError, match=message):
        read(config, table)
