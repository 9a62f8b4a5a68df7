"""Do the pictures of a call match its prompt? Qwen's vision-language models otherwise fail in the middle of their work.

Only of those whose rule was read is it known how many tokens a grid makes: HunYuan-VL adds one a line, GLM-4.xV writes
the frames of a video as pictures, ERNIE-4.5-VL joins frames. What those and others think of a mismatch, the host says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["mismatched_pictures"]

# t * h * w patches, of which spatial_merge_size squared become one token (their `get_image_features`, 5.18 to 5.24)
_BY_AREA = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"})


def mismatched_pictures(config: Any, ids: Tensor | None, arguments: Mapping[str, Any]) -> str | None:
    """Why pixels and placeholders cannot belong together, in words, or None.

    Args:
        config: the target's config.
        ids: [B, S] the whole prompt; None where embeddings take its place.
        arguments: of the target's forward; ``image_grid_thw`` and ``video_grid_thw`` [pictures, 3] count patches in
            time, height and width, of which ``spatial_merge_size`` squared become one token.
    """
    if ids is None or config.model_type not in _BY_AREA:
        return None
    merged = config.vision_config.spatial_merge_size
    for kind in ("image", "video"):
        token, grid = getattr(config, f"{kind}_token_id"), arguments.get(f"{kind}_grid_thw")
        written = int((ids == token).sum())
        made = 0 if grid is None else int(grid.prod(dim=-1).sum()) // merged**2
        if written != made:
            return (
                f"the prompt has {written} {kind} tokens, {kind}_grid_thw makes {made}; "
                "let the model's processor write text and pixels together"
            )
    return None
