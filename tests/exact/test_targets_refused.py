"""Targets that cannot be drafted for are refused by name before any forward; an attached default refuses them too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import DFlashError, UnsupportedTargetError
from dflash_hf.generation.attach import attach, generate
from dflash_hf.generation.record import last_trace
from tests.families import IDS, MOE, SIZES, VOCAB, Family
from tests.scripted import tiny_config
from tests.tiny import build_target, greedy, prompt, tiny_target

LINEAR = {
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "shared_expert_intermediate_size": 24,
}  # fmt: skip
HALF_LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 4, **IDS}
SEQ2SEQ = "AutoModelForSeq2SeqLM"
TWO_STACKS = {"vocab_size": VOCAB, "d_model": 32, "decoder_start_token_id": 0, **IDS}

RECURRENT = {
    "qwen3_next": Family("Qwen3NextConfig", SIZES | MOE | LINEAR),
    "qwen3_5": Family("Qwen3_5TextConfig", SIZES | LINEAR),
    "qwen3_5_moe": Family("Qwen3_5MoeTextConfig", SIZES | MOE | LINEAR),
    "mamba": Family("MambaConfig", SMALL | {"state_size": 8}),
    "mamba2": Family("Mamba2Config", SMALL | {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1}),
    "falcon_h1": Family("FalconH1Config", SIZES | MAMBA | {"mamba_d_ssm": 64}),
    "granitemoehybrid": Family("GraniteMoeHybridConfig", SIZES | MOE | HALF_LINEAR | MAMBA | {"mamba_d_head": 16}),
    "jamba": Family(
        "JambaConfig",
        SIZES | {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    ),
    "rwkv": Family("RwkvConfig", SMALL | {"attention_hidden_size": 32}),
    "recurrent_gemma": Family(
        "RecurrentGemmaConfig", SIZES | {"lru_width": 32, "block_types": ["recurrent", "attention"]}
    ),
}
TWO = {
    "t5": Family("T5Config", TWO_STACKS | {"d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4}, SEQ2SEQ),
    "bart": Family(
        "BartConfig",
        TWO_STACKS | {"encoder_layers": 1, "decoder_layers": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
        SEQ2SEQ,
    ),
}
CACHELESS = {
    "openai_gpt": Family(
        "OpenAIGPTConfig", {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64, **IDS}
    ),
    "mpt": Family("MptConfig", {"vocab_size": VOCAB, "d_model": 32, "n_layers": 4, "n_heads": 4, **IDS}),
    "minimax": Family(
        "MiniMaxConfig", SIZES | HALF_LINEAR | {"num_local_experts": 2, "num_experts_per_tok": 1, "block_size": 16}
    ),
    "xlnet": Family(
        "XLNetConfig", {"vocab_size": VOCAB, "d_model": 32, "n_layer": 4, "n_head": 4, "d_inner": 48, **IDS}
    ),
}
REFUSED = [
    *((kind, family, UnsupportedTargetError, "recurrent layers") for kind, family in RECURRENT.items()),
    *((kind, family, UnsupportedTargetError, "encoder-decoder") for kind, family in TWO.items()),
    *((kind, family, DFlashError, "cache|list of decoder layers") for kind, family in CACHELESS.items()),
]


@contextmanager
def no_forwards(model: nn.Module) -> Iterator[None]:
    """Any forward of any part of the model inside this block is an error."""

    def work(module: nn.Module, *_: object) -> None:
        raise AssertionError(f"{type(module).__name__} was run")

    handles = [module.register_forward_pre_hook(work) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize(("kind", "family", "error", "says"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_target_that_cannot_be_drafted_for_is_refused_before_any_work(kind, family, error, says):
    model, drafter = build_target(family), DFlashDrafter(tiny_config(tiny_target()))
    with no_forwards(model), pytest.raises(error, match=says) as caught:
        generate(model, prompt(), assistant=drafter, max_new_tokens=4)
    assert type(model).__name__ in str(caught.value), "by name"


@pytest.mark.parametrize("kind", sorted([*RECURRENT, *TWO, "xlnet"]))
def test_attach_refuses_it_too_and_leaves_the_model_as_it_was(kind):
    model = build_target((RECURRENT | TWO | CACHELESS)[kind])
    with no_forwards(model), pytest.raises(UnsupportedTargetError, match=type(model).__name__):
        attach(model, DFlashDrafter(tiny_config(tiny_target())))
    assert not {"generate", "_get_candidate_generator"} & vars(model).keys()


@pytest.mark.parametrize("kind", sorted(CACHELESS.keys() - {"xlnet"}))
def test_without_a_cache_an_attached_default_says_so_and_gives_plain_text(kind):
    model = build_target(CACHELESS[kind])
    expected = greedy(model, prompt(), 6)
    attach(model, DFlashDrafter(tiny_config(tiny_target())))
    with pytest.warns(UserWarning, match="running without the attached drafter.*cache"):
        assert torch.equal(model.generate(prompt(), max_new_tokens=6, do_sample=False), expected)
    assert "cache" in last_trace().fallback
