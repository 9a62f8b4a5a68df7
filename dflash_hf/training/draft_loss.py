"""The drafter together with its loss, as one module: a pack of documents in, a sum of weighted losses out.

It is what data parallelism wraps, so that everything with a gradient happens in its ``forward``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dflash_hf.drafter.heads.selector import SelectorHead
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.target.logits import drafter_scale, target_scale
from dflash_hf.target.view import TargetView
from dflash_hf.training.anchors import draw_anchors
from dflash_hf.training.blocks import draft_hidden
from dflash_hf.training.documents import Document
from dflash_hf.training.drafter_head import correction_of, drafter_rows
from dflash_hf.training.features.features import Features, FeatureSource
from dflash_hf.training.heads import HeadRows
from dflash_hf.training.losses import Objective, weighted_loss
from dflash_hf.training.packs import Pack, first_fit, make_pack, pack_tokens
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.seeds import generator_for
from dflash_hf.training.selector_loss import selector_loss
from dflash_hf.training.trained_parts import freeze
from dflash_hf.training.visibility import form_for
from dflash_hf.training.vocabulary import Teacher

__all__ = ["DraftLoss", "Turn", "packs_for"]

Turn = tuple[int, Document]  # a document, and the epoch it comes up in


class DraftLoss(nn.Module):
    """``drafter`` under the recipe's loss; the target stays outside, frozen."""

    def __init__(self, drafter: DFlashDrafter, view: TargetView, recipe: Recipe) -> None:
        super().__init__()
        freeze(drafter, recipe)
        self.drafter = drafter
        self.objective = Objective(recipe.loss, recipe.position_weights, recipe.gamma, recipe.dpace_alpha)
        self._view, self._recipe = view, recipe
        self._scales = drafter_scale(drafter.config, view), target_scale(view)

    def forward(self, pack: Pack, rows: HeadRows) -> tuple[Tensor, Tensor]:
        """The sum of weighted losses [], and the sum of weights []."""
        device = pack.ids.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._recipe.precision == "bfloat16"):
            form = form_for(self._recipe.mask_form, device)
            hidden = draft_hidden(self.drafter, self._view, pack, form, self._recipe.blocks_per_row)
            hidden = hidden[:, self.drafter.config.first_slot :]
            if not isinstance(self.drafter.head, SelectorHead):
                return self._of_slots(hidden, pack, rows)
            chosen, weight = self._of_choices(self.drafter.head, hidden, pack, rows)
            if self._recipe.freeze is None:
                loss, weight = self._of_slots(hidden, pack, rows)
                chosen = loss + chosen
            return chosen, weight

    def _of_slots(self, hidden: Tensor, pack: Pack, rows: HeadRows) -> tuple[Tensor, Tensor]:
        mine, theirs = self._scales
        teacher = None
        if self.objective.needs_teacher:
            assert pack.final is not None, "a loss with a teacher needs features with final states"
            teacher = Teacher(pack.final, pack.teacher_rows, theirs, rows)
        return weighted_loss(
            hidden,
            pack.labels,
            drafter_rows(self.drafter, rows),
            self.objective,
            scale=mine,
            teacher=teacher,
            correction=correction_of(self.drafter, rows, pack.before),
        )

    def _of_choices(self, selector: SelectorHead, hidden: Tensor, pack: Pack, rows: HeadRows) -> tuple[Tensor, Tensor]:
        return selector_loss(
            selector,
            hidden,
            pack.labels,
            pack.before,
            drafter_rows(self.drafter, rows),
            self.objective,
            vocabulary=self.drafter.vocabulary if self.drafter.config.reduced_vocabulary else None,
            scale=self._scales[0],
        )


def packs_for(
    turns: Sequence[Turn],
    features: FeatureSource,
    recipe: Recipe,
    *,
    slots: int,
    mask_token_id: int,
    first_slot: int = 1,
) -> list[Pack]:
    """Documents with their anchors of this turn, side by side up to the recipe's ``pack_tokens``."""
    documents = [document for _, document in turns]
    anchors = [
        draw_anchors(document, recipe.anchors_per_document, f"{recipe.seed}-{epoch}") for epoch, document in turns
    ]
    sizes = [pack_tokens(document, len(places), slots) for document, places in zip(documents, anchors, strict=True)]
    found = features.of(documents)
    if recipe.feature_noise:
        found = [_noisy(feature, recipe, *turn) for feature, turn in zip(found, turns, strict=True)]
    return [
        make_pack(
            [documents[place] for place in group],
            [found[place] for place in group],
            [anchors[place] for place in group],
            slots=slots,
            mask_token_id=mask_token_id,
            first_slot=first_slot,
        )
        for group in first_fit(sizes, recipe.pack_tokens)
    ]


def _noisy(features: Features, recipe: Recipe, epoch: int, document: Document) -> Features:
    """Taps with Gaussian noise of ``feature_noise`` times their own spread: exact features are not relied upon."""
    generator = generator_for("noise", recipe.seed, epoch, document.id)
    taps = features.taps.float()
    noise = torch.randn(taps.shape, generator=generator).to(taps.device)
    return replace(features, taps=taps + recipe.feature_noise * taps.std(dim=0, keepdim=True) * noise)
