"""What vLLM and SGLang read of a drafter we wrote says the same drafter.

Both load config.json with transformers' AutoConfig. Their rules for a DFlash drafter are restated here from vLLM 0.33.0
(``qwen3_dflash.py``, ``eagle3_utils.py``, ``configs/eagle.py``) and SGLang 0.5.23 (``dflash_utils.py``, ``dflash.py``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from dflash_hf import DFlashConfig, DFlashDrafter
from dflash_hf.checkpoints.load import load_drafter

SHAPE: dict[str, Any] = {
    "hidden_size": 12,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "target_layer_ids": [1, 3],
    "num_target_layers": 6,
    "block_size": 5,
    "mask_token_id": 37,
    "vocab_size": 40,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}
LAYERS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, causal": {"layer_causal": [True, True]},
    "sliding": {"layer_windows": [6, 6]},
    "sliding, causal": {"layer_windows": [6, 6], "layer_causal": [True, True]},
    "mixed": {"layer_windows": [6, None], "layer_causal": [True, False]},
}


def windows_and_causality(config: Any) -> list[tuple[int | None, bool]]:
    """Per layer: vLLM's and SGLang's rule, which is one for files without ``use_swa`` and ``dflash_config.causal``."""
    found = []
    for kind in config.layer_types:
        sliding = kind == "sliding_attention"
        causal = getattr(config, "is_causal", None)
        found.append((config.sliding_window if sliding else None, sliding if causal is None else causal))
    return found


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS.keys())
def test_engines_read_the_layers_as_they_were_trained(layers: dict[str, Any], tmp_path: Path) -> None:
    config = DFlashConfig(**SHAPE, **layers)
    DFlashDrafter(config).save_pretrained(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path)
    assert windows_and_causality(read) == list(zip(config.layer_windows, config.layer_causal, strict=True))


def test_engines_find_what_they_need_and_nothing_that_means_another_head(tmp_path: Path) -> None:
    DFlashDrafter(DFlashConfig(**SHAPE)).save_pretrained(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path)
    assert read.architectures == ["DFlashDraftModel"] and read.model_type == "qwen3"
    assert read.dflash_config == {"block_size": 5, "mask_token_id": 37, "target_layer_ids": [1, 3]}
    assert (read.block_size, read.num_target_layers, read.vocab_size, read.head_dim) == (5, 6, 40, 8)
    assert read.rope_parameters == {"rope_type": "default", "rope_theta": 5e5} and read.hidden_act == "silu"
    written = json.loads((tmp_path / "config.json").read_text())
    others = {"eagle_aux_hidden_state_layer_ids", "target_hidden_size", "draft_vocab_size", "quantization_config"}
    assert not others & written.keys()  # each of them would send vLLM or SGLang another way


def test_a_file_without_a_vocabulary_gets_the_paired_targets(tmp_path: Path) -> None:
    """Without the key both engines take Qwen3's 151936, and vLLM then expects a reduced head."""
    DFlashDrafter(DFlashConfig(**{**SHAPE, "vocab_size": None})).save_pretrained(tmp_path / "theirs")
    assert "vocab_size" not in json.loads((tmp_path / "theirs" / "config.json").read_text())
    drafter = load_drafter(tmp_path / "theirs")
    drafter.config.vocab_size = 99  # as `check_pair` does
    drafter.save_pretrained(tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["vocab_size"] == 99
