"""Pictures and placeholders: counted where the rule is known, and left to the host where it is another."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dflash_hf.target.pictures import mismatched_pictures

PICTURE, VIDEO = 90, 91
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")


def config(model_type):
    return SimpleNamespace(
        model_type=model_type,
        image_token_id=PICTURE,
        video_token_id=VIDEO,
        vision_config=SimpleNamespace(spatial_merge_size=2),
    )


def prompt(pictures=0, videos=0):
    return torch.tensor([[5, *[PICTURE] * pictures, *[VIDEO] * videos, 6]])


@pytest.mark.parametrize("model_type", QWEN)
def test_qwens_tokens_are_counted_by_area(model_type):
    known = config(model_type)
    grids = {"image_grid_thw": torch.tensor([[1, 4, 4], [1, 4, 6]]), "video_grid_thw": torch.tensor([[3, 4, 4]])}
    assert mismatched_pictures(known, prompt(4 + 6, 12), grids) is None
    assert "10 image tokens, image_grid_thw makes 0" in mismatched_pictures(known, prompt(10), {})
    assert "11 image tokens, image_grid_thw makes 10" in mismatched_pictures(known, prompt(11, 12), grids)
    assert "4 video tokens, video_grid_thw makes 12" in mismatched_pictures(known, prompt(10, 4), grids)
    assert mismatched_pictures(known, None, grids) is None, "embeddings"


@pytest.mark.parametrize(
    ("model_type", "ids", "grids"),
    [
        # 2 lines of 2 tokens, a token after each, one before and one after all
        ("hunyuan_vl", prompt(2 * (2 + 1) + 2), {"image_grid_thw": torch.tensor([[1, 4, 4]])}),
        # the frames of a video are written as pictures
        ("glm4v", prompt(3 * 4), {"video_grid_thw": torch.tensor([[3, 4, 4]])}),
        ("glm46v", prompt(3 * 4), {"video_grid_thw": torch.tensor([[3, 4, 4]])}),
        ("glm_ocr", prompt(3 * 4), {"video_grid_thw": torch.tensor([[3, 4, 4]])}),
        # two frames become one
        ("ernie4_5_vl_moe", prompt(0, 2 * 4), {"video_grid_thw": torch.tensor([[4, 4, 4]])}),
    ],
)
def test_what_other_families_write_is_not_refused(model_type, ids, grids):
    assert mismatched_pictures(config(model_type), ids, grids) is None
    assert mismatched_pictures(config("qwen2_5_vl"), ids, grids) is not None, "Qwen's rule is another"
