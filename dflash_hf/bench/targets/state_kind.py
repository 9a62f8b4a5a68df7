"""How the memory of a target goes back after a verification, as the product names it."""

from __future__ import annotations

from transformers import PreTrainedModel

__all__ = ["state_kind"]


def state_kind(model: PreTrainedModel) -> str:
    """``crop``: the cache drops its newest tokens. Every target this version drafts for is of this kind."""
    return "crop"
