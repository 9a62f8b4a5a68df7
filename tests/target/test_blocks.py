"""Targets that read a block otherwise than its tokens are refused by name; a mended release is noticed."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedConfig
from transformers.models.mllama.configuration_mllama import MllamaTextConfig
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTextConfig

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.generation.attach import generate
from dflash_hf.target.blocks import reads_blocks_otherwise
from dflash_hf.target.host import cache_key
from tests.exact.test_targets_refused import CACHELESS, no_forwards
from tests.families import IDS, IMAGE_TEXT, MOE, SIZES, VOCAB, WINDOW, Family
from tests.scripted import tiny_config
from tests.tiny import build_target, prompt, tiny_target

MOSHI = Family("MoshiConfig", SIZES | WINDOW | {"ffn_dim": 64})
PROPHETNET = Family(
    "ProphetNetConfig",
    {"vocab_size": VOCAB, "hidden_size": 32, "num_decoder_layers": 2, "num_decoder_attention_heads": 4}
    | {"decoder_ffn_dim": 48, "max_position_embeddings": 64, **IDS},
)


def omni(window: int | None) -> PreTrainedConfig:
    return Qwen3OmniMoeTextConfig(**SIZES | MOE | {"sliding_window": window})


def test_qwen3_omni_is_refused_with_a_window_only():
    assert "window of 8" in reads_blocks_otherwise(omni(8))
    assert reads_blocks_otherwise(omni(None)) is None


PICTURES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_global_layers": 1, "image_size": 8}
MLLAMA = Family(
    "MllamaConfig",
    {
        "text_config": SIZES | {"cross_attention_layers": [1]},
        "vision_config": PICTURES | {"attention_heads": 2, "patch_size": 4, "intermediate_layers_indices": [0]},
    },
    IMAGE_TEXT,
)


@pytest.mark.parametrize("family", [MOSHI, PROPHETNET, MLLAMA], ids=lambda family: family.config_class)
def test_it_is_refused_before_any_work(family):
    model = build_target(family)
    drafter = DFlashDrafter(tiny_config(tiny_target(), target_layer_ids=[0]))
    with no_forwards(model), pytest.raises(UnsupportedTargetError, match=f"{type(model).__name__}.*token"):
        generate(model, prompt(), assistant=drafter, max_new_tokens=4)


def logits_after(model, ids, steps):
    """Logits of the last token of ``ids``, read in forwards of so many tokens each."""
    held, at = None, 0
    for count in steps:
        options = {} if held is None else {cache_key(model): held}
        mask = torch.ones(1, at + count, dtype=torch.long)
        with torch.no_grad():
            out = model(ids[:, at : at + count], attention_mask=mask, use_cache=True, **options)
        held, at = out[cache_key(model)], at + count
    return out.logits[:, -1]


def test_moshi_still_reads_a_block_past_its_window_otherwise_than_one_by_one():
    model = build_target(MOSHI)
    ids = prompt(16)
    one_by_one, at_once = logits_after(model, ids, [8] + [1] * 8), logits_after(model, ids, [8, 8])
    assert not torch.allclose(one_by_one, at_once, atol=1e-3), "mended: take it out of target/blocks.py"


def test_prophetnet_still_reads_one_token_at_a_time():
    model = build_target(PROPHETNET)
    with pytest.raises(AssertionError, match="length 1"):
        logits_after(model, prompt(8), [4, 4])


def test_mllama_without_cross_attention_is_not_refused():
    assert reads_blocks_otherwise(MllamaTextConfig(**SIZES | {"cross_attention_layers": []})) is None


def test_minimax_still_continues_several_tokens_otherwise_than_one_by_one():
    """Mended: see whether its ``MiniMaxCache`` can go back by then, and let it draft."""
    model = build_target(CACHELESS["minimax"])
    one_by_one, at_once = logits_after(model, prompt(7), [4, 1, 1, 1]), logits_after(model, prompt(7), [4, 3])
    assert not torch.allclose(one_by_one, at_once, atol=1e-3)
