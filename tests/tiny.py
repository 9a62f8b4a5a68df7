"""Tiny random targets of real architectures, float32, whose greedy text varies."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests import families
from tests.families import VOCAB, Family
from tests.hybrids import HYBRIDS

__all__ = ["CONFIGS", "FAMILIES", "VOCAB", "build_target", "greedy", "letters", "prompt", "tiny_target"]

FAMILIES = families.FAMILIES | HYBRIDS

# The families that tests of everything else go through; `tests/exact/test_targets.py` has them all.
CONFIGS = (
    "deepseek_v3",
    "gemma3",
    "gpt2",
    "gpt_oss",
    "lfm2",
    "llama",
    "mistral",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_5",
    "qwen3_moe",
)


def tiny_target(kind: str = "llama", seed: int = 0, **loading: object) -> PreTrainedModel:
    """A model of the family called ``kind``; see :func:`build_target`."""
    return build_target(FAMILIES[kind], seed, **loading)


def build_target(family: Family, seed: int = 0, **loading: object) -> PreTrainedModel:
    """A model whose weights are spread enough that greedy text does not repeat one token.

    Args:
        family: its architecture; where this transformers has none of it, the test is skipped.
        seed: of the weights.
        loading: further arguments of ``from_config``, such as ``attn_implementation``.
    """
    config = family.config()
    torch.manual_seed(seed)
    model = getattr(transformers, family.auto).from_config(config, **loading).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                wide = "embed" in name or "lm_head" in name
                parameter.normal_(0.0, 1.0 if wide else family.spread)
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
