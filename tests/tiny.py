"""Tiny random targets of real architectures, float32, whose greedy text varies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DeepseekV3Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCAB = 96
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
IDS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
CONV = {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MLA = {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24,
}  # fmt: skip
M_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32,
    "window_size": 16, "fullatt_block_indexes": [0],
}  # fmt: skip
NO_IMAGES = {f"{name}_id": VOCAB + n for n, name in enumerate(("image_token", "video_token", "vision_start_token"))}
CONFIGS: dict[str, Callable[[], object]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SIZES, **MOE),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=8),
    "gemma3": lambda: Gemma3TextConfig(**SIZES, sliding_window=8),
    "gpt2": lambda: GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=4, n_head=4, n_positions=128, **IDS),
    "lfm2": lambda: Lfm2Config(**(SIZES | CONV)),
    "deepseek_v3": lambda: DeepseekV3Config(**(SIZES | MLA)),
    "qwen2_5_vl": lambda: Qwen2_5_VLConfig(text_config=SIZES | M_ROPE, vision_config=VISION, **NO_IMAGES),
    "gpt_oss": lambda: GptOssConfig(**SIZES, sliding_window=8, num_local_experts=4, num_experts_per_tok=2),
}


def tiny_target(kind: str = "llama", seed: int = 0) -> PreTrainedModel:
    """A model of four layers whose weights are spread enough that greedy text does not repeat one token."""
    torch.manual_seed(seed)
    auto = AutoModelForImageTextToText if "vl" in kind else AutoModelForCausalLM
    model = auto.from_config(CONFIGS[kind]()).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                wide = "embed" in name or "lm_head" in name
                parameter.normal_(0.0, 1.0 if wide else 0.25)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer with one character per id from 2 on: enough for stop strings, streamers and pipelines."""
    vocabulary = {"<pad>": 0, "<bos>": 1, **{chr(31 + number): number for number in range(2, VOCAB)}}
    characters = Tokenizer(models.BPE(vocabulary, merges=[]))
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", bos_token="<bos>")


def prompt(length: int = 7, seed: int = 3) -> Tensor:
    return torch.randint(2, VOCAB, (1, length), generator=torch.Generator().manual_seed(seed))


def greedy(model: PreTrainedModel, ids: Tensor, new: int, **options: object) -> Tensor:
    """Plain greedy text of a model, attached or not, through the class's own generate."""
    return type(model).generate(model, ids, max_new_tokens=new, do_sample=False, **options)
