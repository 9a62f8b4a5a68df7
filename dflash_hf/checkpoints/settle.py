"""Settles with its target what a drafter takes from it: for layouts that cannot say "as the target scales it".

In: a drafter and its target. Out: a drafter that drafts the same and owes less; or an error where a layout's engine
would draft something else.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from transformers import PreTrainedModel

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.drafter.redescribed import redescribed
from dflash_hf.errors import CheckpointError
from dflash_hf.target.logits import Scale, drafter_scale
from dflash_hf.target.pairing import pair_view
from dflash_hf.target.view import TargetView

__all__ = ["check_module_embeds", "settle_scale", "settled"]

_SAMPLE = 64  # ids whose embeddings are compared


@torch.no_grad()
def settled(drafter: DFlashDrafter, target: PreTrainedModel) -> DFlashDrafter:
    """A drafter that drafts the same and shares all weights of ``drafter``, with embedding and logit scale of its own.

    Its rows [V, D] are the target's as this drafter sees them: scaled by the target and by ``embedding_scale``, or raw.

    Raises:
        IncompatiblePairError: the two do not fit.
        CheckpointError: the drafter's other tables have more rows than the target has ids.
    """
    view, config, added = pair_view(target, drafter), deepcopy(drafter.config), {}
    settle_scale(config, view)
    if config.embedding != "own":
        rows = view.vocab_rows if config.stored_vocab_size is None else int(config.stored_vocab_size)
        if rows > view.vocab_rows:
            raise CheckpointError(f"the drafter is of {rows} ids, {view.public_name} embeds {view.vocab_rows}")
        table = view.embed(torch.arange(rows)[None], config.embedding)[0] * config.embedding_scale
        config.embedding, config.embedding_scale, config.stored_vocab_size = "own", 1.0, rows
        added = {"embed_tokens.weight": table.to(drafter.device, drafter.dtype)}
    unchanged = not added and config.inherits_logit_scale == drafter.config.inherits_logit_scale
    return drafter if unchanged else redescribed(drafter, config, added)


def settle_scale(config: DFlashConfig, view: TargetView) -> None:
    """Write into ``config`` the logit scale that it takes from the target."""
    if config.inherits_logit_scale:
        scale = drafter_scale(config, view)
        config.inherits_logit_scale, config.final_logit_softcapping = False, scale.softcap
        config.output_multiplier = None if scale.multiplier == Scale().multiplier else scale.multiplier


@torch.no_grad()
def check_module_embeds(drafter: DFlashDrafter, target: PreTrainedModel) -> None:
    """Refuse a drafter whose blocks are not what the target's embedding module alone gives, as transformers' lane does.

    Raises:
        IncompatiblePairError: the two do not fit.
        CheckpointError: the module leaves a factor out, or has one that this drafter was trained without.
    """
    view, source = pair_view(target, drafter), drafter.config.embedding
    if source not in ("target", "target_rows"):
        return
    ids = torch.arange(min(view.vocab_rows, _SAMPLE))[None]
    if not torch.equal(view.embed(ids, source), view.embed(ids, "target_module")):
        means = "with the target's factor around it" if source == "target" else "raw, without the factor inside it"
        raise CheckpointError(
            f"transformers' own DFlash drafter takes what {view.public_name}'s embedding module gives; this drafter "
            f"takes it {means}, and would draft otherwise there. Run it with this package, or convert to zlab"
        )
