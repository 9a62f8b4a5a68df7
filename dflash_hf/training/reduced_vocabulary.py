"""Which of the target's tokens a reduced head can say: those its answers are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_hf.errors import TrainingError
from dflash_hf.target.view import TargetView
from dflash_hf.training.documents import Document
from dflash_hf.training.heads import answer_tokens

__all__ = ["covered", "frequent_tokens"]


def frequent_tokens(view: TargetView, documents: Sequence[Document], size: int) -> Tensor:
    """Ids [size], ascending: the target's end-of-text tokens, and the most frequent tokens of the answers.

    Of equally frequent ones the lower ids are taken, so the same answers always give the same ids.

    Raises:
        TrainingError: ``size`` is not less than all of the target's tokens.
    """
    if size >= view.logit_columns:
        raise TrainingError(
            f"draft_vocab_size={size}: {view.public_name} has {view.logit_columns} tokens; leave it out to use them all"
        )
    counts = torch.bincount(answer_tokens(documents), minlength=view.logit_columns)[: view.logit_columns]
    ends = [token for token in _end_tokens(view) if 0 <= token < len(counts)]
    counts[ends] = counts.sum() + 1
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def covered(documents: Sequence[Document], vocabulary: Tensor) -> float:
    """The share of the answers' tokens that are among ``vocabulary``."""
    return float(torch.isin(answer_tokens(documents), vocabulary.cpu()).float().mean())


def _end_tokens(view: TargetView) -> list[int]:
    found: list[int] = []
    for source in (view.text_config, view.model.generation_config):
        value = getattr(source, "eos_token_id", None)
        found += value if isinstance(value, list) else [] if value is None else [value]
    return found
