"""Every dialect against the slow reference, from the target's hidden states to drafted ids.

Rounds keep 0, some and all of a draft; the first context is shorter than the window, as long, and longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dflash_hf.drafter.heads.draft import Draft
from tests.checkpoints.cases import CASES
from tests.checkpoints.reference import dialects
from tests.checkpoints.reference.heads import Row
from tests.checkpoints.slow_target import drafts, load, pair, taps_of
from tests.checkpoints.tiny_dialects import Checkpoint, W

TOLERANCE = 1e-5


def rounds(most: int) -> list[list[int]]:
    """Anchors of each series: after a prompt, a draft was lost whole, kept in part, kept whole."""
    return [[W - 2, W - 1, W + 2, W + 3 + most], [W, W + 1 + most, W + 2 + most], [2 * W + 1, 2 * W + 3, 2 * W + 4]]


def rows_of(draft: Draft) -> list[Row]:
    """The product's logits, each with the id it is of."""
    logits = draft.logits[0]
    columns = torch.arange(logits.shape[-1]) if draft.vocabulary is None else draft.vocabulary
    ids = columns.expand(draft.logits.shape)[0]
    return [dict(zip(a.tolist(), b.tolist(), strict=True)) for a, b in zip(ids, logits, strict=True)]


def check(checkpoint: Checkpoint, folder: Path) -> None:
    """Every series, with the injected context carried along and with all of it injected at once."""
    both = pair(checkpoint.target)
    drafter = load(checkpoint, folder)
    slow = getattr(dialects, checkpoint.reading)(checkpoint.config, checkpoint.tensors)
    assert drafter.config.num_draft_tokens == slow.drafts
    taps = taps_of(drafter, both)
    for anchors in rounds(slow.drafts):
        carried, at_once = (drafts(drafter, both, taps, anchors, cached=cached) for cached in (True, False))
        for anchor, *found in zip(anchors, carried, at_once, strict=True):
            rows, ids = slow.draft(both.slow, both.run, anchor)
            for draft in found:
                assert_same(draft, rows, ids, f"anchor at {anchor}")


def assert_same(draft: Draft, rows: list[Row], ids: list[int], where: str) -> None:
    for mine, theirs in zip(rows_of(draft), rows, strict=True):
        assert mine.keys() == theirs.keys(), where
        worst = max(abs(mine[token] - theirs[token]) for token in theirs)
        assert worst < TOLERANCE, f"{where}: logits differ by {worst:.1e}"
    assert draft.tokens[0].tolist() == ids, where


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_dialect_drafts_as_its_slow_reference(case: str, tmp_path: Path) -> None:
    check(CASES[case](), tmp_path)
