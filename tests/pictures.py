"""Tiny vision-language targets and prompts with pictures of random pixels, four tokens each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.families import (
    IMAGE_TEXT,
    M_ROPE,
    MIXED,
    PER_LAYER,
    SIZES,
    SOFT_CAP,
    TOWER,
    UNTIED,
    VISION,
    VOCAB,
    Family,
)  # fmt: skip
from tests.hybrids import LINEAR, THREE_AXES
from tests.tiny import prompt

__all__ = ["SEEING", "prompt_with"]

PICTURE, VIDEO, START, END, SOUND = (VOCAB - place for place in range(1, 6))
QWEN_IDS = {
    "image_token_id": PICTURE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END,
}  # fmt: skip
GEMMA4_IDS = {
    "image_token_id": PICTURE, "video_token_id": VIDEO, "audio_token_id": SOUND, "boi_token_id": START,
    "eoi_token_id": END,
}  # fmt: skip
GEMMA3_IDS = {"image_token_index": PICTURE, "boi_token_index": START, "eoi_token_index": END}
PATCHES = VISION | {"num_position_embeddings": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}
POOLED = TOWER | {"num_key_value_heads": 2, "head_dim": 8, "pooling_kernel_size": 2, "position_embedding_size": 16}
TOKENS, GRID = 4, 4  # tokens of a picture, and its patches along each side

Pixels = Callable[[int, torch.Generator], dict[str, Tensor]]


def _qwen(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    pixels = torch.randn(count * GRID * GRID, 3 * 2 * 4 * 4, generator=generator)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, GRID, GRID]] * count)}


def _gemma3(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(count, 3, 16, 16, generator=generator)}


def _gemma4(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    places = [[across, down] for down in range(GRID) for across in range(GRID)]
    pixels = torch.rand(count, GRID * GRID, 3 * 4 * 4, generator=generator)
    return {"pixel_values": pixels, "image_position_ids": torch.tensor([places] * count)}


def _family(config_class: str, text: dict[str, Any], vision: dict[str, Any], **ids: Any) -> Family:
    return Family(config_class, {"text_config": text, "vision_config": vision, **ids}, IMAGE_TEXT, spread=0.2)


# name: the target, its pixels, and what it calls the mask of a picture's tokens
SEEING: dict[str, tuple[Family, Pixels, str]] = {
    "qwen2_5_vl": (_family("Qwen2_5_VLConfig", SIZES | M_ROPE, PATCHES, **QWEN_IDS), _qwen, "mm_token_type_ids"),
    "qwen3_vl": (
        _family("Qwen3VLConfig", SIZES | M_ROPE, PATCHES | {"deepstack_visual_indexes": [0]}, **QWEN_IDS),
        _qwen,
        "mm_token_type_ids",
    ),
    "qwen3_5_vl": (
        _family("Qwen3_5Config", SIZES | LINEAR | {"rope_parameters": THREE_AXES}, PATCHES, **QWEN_IDS),
        _qwen,
        "mm_token_type_ids",
    ),
    "gemma3": (
        _family(
            "Gemma3Config",
            SIZES | MIXED,
            TOWER | {"image_size": 16},
            mm_tokens_per_image=TOKENS,
            **GEMMA3_IDS,
            **UNTIED,
        ),
        _gemma3,
        "token_type_ids",
    ),
    "gemma4": (
        _family(
            "Gemma4Config", SIZES | MIXED | PER_LAYER | SOFT_CAP, POOLED, audio_config=None, **GEMMA4_IDS, **UNTIED
        ),
        _gemma4,
        "mm_token_type_ids",
    ),
}


def prompt_with(kind: str, pictures: int, seed: int = 0) -> dict[str, Tensor]:
    """The arguments of a prompt with so many pictures of seed ``seed``, each in the middle of text."""
    _, pixels, marks = SEEING[kind]
    framed = torch.tensor([[START, *[PICTURE] * TOKENS, END]])
    parts = [prompt(3) % SOUND]
    for number in range(pictures):
        parts += [framed, prompt(2, seed=number) % SOUND]
    ids = torch.cat(parts, dim=1)
    inputs = {"input_ids": ids, marks: (ids == PICTURE).long()}
    return inputs | (pixels(pictures, torch.Generator().manual_seed(seed)) if pictures else {})
