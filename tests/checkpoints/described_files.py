"""Tiny checkpoints of the described dialects, written from the survey's tables: config, tensors, and what they mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.checkpoints.slow_described import Meaning
from tests.checkpoints.tiny import BLOCK, HEAD_DIM, LAYERS, MASK, TAPS, VOCAB, WIDTH, tiny_config, tiny_tensors

FULL, SLIDING = "full_attention", "sliding_attention"
Files = tuple[dict[str, Any], dict[str, Tensor], Meaning]
HEAD = 8  # wide enough that half of a head still has pairs of two frequencies
NO_WINDOWS = Meaning(windows=[None] * LAYERS)


def random(*shape: int, seed: int, scale: float = 0.4, around: float = 0.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale + around


def laguna(gate: str = "per-head", **changes: Any) -> Files:
    """Section 3.6: fused projections, gates, a norm per tap; causal, sliding, the last layer among the taps."""
    nested = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": [1, 5], "num_target_layers": 6}
    config = tiny_config(
        architectures=["DFlashLagunaForCausalLM"],
        model_type="laguna",
        dflash_config=nested | {"causal": True},
        draft_vocab_size=VOCAB,
        gating=gate,
        layer_types=[SLIDING] * LAYERS,
        sliding_window=5,
        use_sliding_window=None,
        eagle_aux_hidden_state_layer_ids=[2, 6],
        rope_parameters={"rope_theta": 500000.0, "rope_type": "default"},
        num_target_layers=None,
        head_dim=HEAD,
        **changes,
    )
    tensors = tiny_tensors(config, seed=3)
    gates = {"per-head": 2, "per-element": 2 * HEAD, "disabled": 0}[gate]
    for layer in range(LAYERS):
        prefix = f"layers.{layer}.self_attn."
        tensors[f"{prefix}qkv_proj.weight"] = torch.cat(
            [tensors.pop(f"{prefix}{part}_proj.weight") for part in ("q", "k", "v")]
        )
        if gates:
            tensors[f"{prefix}g_proj.weight"] = random(gates, WIDTH, seed=40 + layer)
    for tap in range(TAPS):
        tensors[f"aux_hidden_norms.{tap}.weight"] = random(WIDTH, seed=50 + tap, around=1.0)
    return (
        config,
        tensors,
        Meaning([5] * LAYERS, causal=True, head_dim=HEAD, theta=5e5, taps="normed", context_norm=True),
    )


def mimo(**nested: Any) -> Files:
    """Section 3.7: sinks, values scaled, half of each head rotated, all layers windowed and non-causal."""
    base = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": [0, 5], "use_swa": True}
    swa = {"swa_window_size": 5, "attention_sink_bias": True, "attention_value_scale": 0.612}
    config = tiny_config(
        dflash_config=base | swa | {"backbone_rotary_base": 5000000} | nested,
        partial_rotary_factor=0.5,
        rope_parameters=None,
        rope_theta=10000,
        layer_types=None,
        head_dim=HEAD,
        v_head_dim=HEAD,
        use_sliding_window=None,
        sliding_window=5,
    )
    tensors = tiny_tensors(config, seed=5)
    for layer in range(LAYERS):
        tensors[f"layers.{layer}.self_attn.attention_sink_bias"] = random(2, seed=60 + layer, scale=1.0)
    means = Meaning([5] * LAYERS, head_dim=HEAD, theta=1e4, context_theta=5e6, rotated=HEAD // 2, value_scale=0.612)
    return config, tensors, means


def lfm(**changes: Any) -> Files:
    """Section 3.8: DSpark whose rotary pairs stand side by side."""
    nested = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": [1, 3], "projector_type": "dspark"}
    nested |= {"markov_rank": 3, "markov_head_type": "vanilla", "enable_confidence_head": True}
    config = tiny_config(**{"rope_is_neox_style": False, "dflash_config": nested} | changes)
    tensors = tiny_tensors(config, seed=7)
    tensors["markov_head.markov_w1.weight"] = random(VOCAB, 3, seed=70)
    tensors["markov_head.markov_w2.weight"] = random(VOCAB, 3, seed=71)
    tensors["confidence_head.proj.weight"] = random(1, WIDTH + 3, seed=72)
    tensors["confidence_head.proj.bias"] = random(1, seed=73)
    return config, tensors, replace(NO_WINDOWS, interleaved=True, first_slot=0)


def gated(temperature: float | None = None) -> Files:
    """Section 3.10: AngelSpec's gated sum; no projection of the taps, the embedding in the files."""
    config = tiny_config(
        model_type="dflash",
        fusion_type="gated_sum",
        dflash_config=None,
        target_layer_ids=[1, 3],
        num_target_layers=TAPS,
        target_num_hidden_layers=6,
        mask_token_id=MASK,
        block_size=BLOCK,
        gate_temperature=temperature,
    )
    tensors = tiny_tensors(config | {"dflash_config": {"target_layer_ids": [1, 3]}}, seed=9)
    del tensors["fc.weight"]
    tensors["context_norm.weight"] = tensors.pop("hidden_norm.weight")
    tensors["final_norm.weight"] = tensors.pop("norm.weight")
    tensors["layer_gate"] = random(TAPS, seed=80, scale=1.0)
    for tap in range(TAPS):
        tensors[f"candidate_norms.{tap}.weight"] = random(WIDTH, seed=81 + tap, around=1.0)
    tensors["embed_tokens.weight"] = random(VOCAB, WIDTH, seed=84)
    return config, tensors, replace(NO_WINDOWS, taps="gated", temperature=temperature or 1.0)


def own_parts(*, head: int | None, embedding: bool = True, **changes: Any) -> Files:
    """z-lab's layout with parts of its own; ``head`` is how many rows the head has."""
    config = tiny_config(draft_vocab_size=head, **changes)
    tensors = tiny_tensors(config, seed=11)
    if embedding:
        tensors["embed_tokens.weight"] = random(VOCAB, WIDTH, seed=90)
    if head is not None:
        tensors["lm_head.weight"] = random(head, WIDTH, seed=91)
    if head not in (None, VOCAB):
        kept = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(92))[:head].sort()[0]
        tensors["d2t"] = kept - torch.arange(len(kept))
    return config, tensors, NO_WINDOWS


def gemma4(*, same: bool = True, rank: int = 3, part: float = 0.5) -> Files:
    """Sections 3.4 and 13.7: DeepSpec over Gemma 4's layer, ``rope_parameters`` malformed as its files have it."""
    keys = 1 if same else 2
    config: dict[str, Any] = {
        "architectures": ["Gemma4DSparkModel"],
        "model_type": "gemma4_text",
        "attention_bias": False,
        "attention_k_eq_v": same,
        "block_size": BLOCK,
        "confidence_head_with_markov": True,
        "enable_confidence_head": False,
        "enable_moe_block": False,
        "final_logit_softcapping": 3.0,
        "global_head_dim": HEAD,
        "head_dim": HEAD_DIM,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": WIDTH,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 16,
        "layer_types": [FULL] * LAYERS,
        "markov_head_type": "vanilla",
        "markov_rank": rank,
        "mask_token_id": 4,
        "max_position_embeddings": 256,
        "num_anchors": 8,
        "num_attention_heads": 2,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 2,
        "num_target_layers": 6,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": part},
            "rope_type": "default",
            "rope_theta": None,
        },
        "sliding_window": 512,
        "target_layer_ids": [-1, 3],
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    }
    shaped = config | {"head_dim": HEAD, "num_key_value_heads": keys}
    tensors = tiny_tensors(shaped, seed=13)
    for layer in range(LAYERS):
        prefix = f"layers.{layer}."
        for number, name in enumerate(("pre_feedforward_layernorm", "post_feedforward_layernorm")):
            tensors[f"{prefix}{name}.weight"] = random(WIDTH, seed=100 + 2 * layer + number, around=1.0)
        tensors[f"{prefix}layer_scalar"] = torch.tensor([0.7 + layer])
        if same:
            del tensors[f"{prefix}self_attn.v_proj.weight"]
    tensors["embed_tokens.weight"] = random(VOCAB, WIDTH, seed=110)
    tensors["lm_head.weight"] = random(VOCAB, WIDTH, seed=111)
    if rank:
        tensors["markov_head.markov_w1.weight"] = random(VOCAB, rank, seed=112)
        tensors["markov_head.markov_w2.weight"] = random(VOCAB, rank, seed=113)
    means = Meaning(
        [None] * LAYERS, heads=2, kv_heads=keys, head_dim=HEAD, theta=1e6, pairs=int(part * HEAD // 2), gemma=True,
        first_slot=0, embedding_scale=WIDTH**0.5, softcap=3.0,
    )  # fmt: skip
    return config, tensors, means
