"""Do the pictures of a call match its prompt? Qwen's vision-language models otherwise fail in the middle of their work.

Other families say so themselves, before their first layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["mismatched_pictures"]


def mismatched_pictures(config: Any, ids: Tensor | None, arguments: Mapping[str, Any]) -> str | None:
    """Why pixels and placeholders cannot belong together, in words, or None.

    Args:
        config: the target's config.
        ids: [B, S] the whole prompt; None where embeddings take its place.
        arguments: of the target's forward; ``image_grid_thw`` and ``video_grid_thw`` [pictures, 3] count patches in
            time, height and width, of which ``spatial_merge_size`` squared become one token.
    """
    vision = getattr(config, "vision_config", None)
    merged = getattr(vision, "spatial_merge_size", None)
    if ids is None or merged is None:
        return None
    for kind in ("image", "video"):
        token, grid = getattr(config, f"{kind}_token_id", None), arguments.get(f"{kind}_grid_thw")
        if token is None:
            continue
        written = int((ids == token).sum())
        made = 0 if grid is None else int(grid.prod(dim=-1).sum()) // merged**2
        if written != made:
            return (
                f"the prompt has {written} {kind} tokens, {kind}_grid_thw makes {made}; "
                "let the model's processor write text and pixels together"
            )
    return None
