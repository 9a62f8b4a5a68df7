"""What a recipe adds to a drafter: a reduced head, a Markov head, a selector with its convolutions.

In: a drafter and a recipe. Out: a drafter with the same weights and the new parts. Each begins as if it were not there:
a reduced head has the target's own rows, a Markov head and a selector correct by nothing, a convolution passes on what
it gets. What the drafter says changes by training alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch

from dflash_hf.checkpoints.settle import settle_scale, settled
from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.convolution import BlockConvolution
from dflash_hf.drafter.heads.markov import MarkovHead
from dflash_hf.drafter.heads.selector import SelectorHead
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import TrainingError
from dflash_hf.target.view import TargetView
from dflash_hf.training.documents import Document
from dflash_hf.training.heads import head_parameters
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.reduced_vocabulary import frequent_tokens

__all__ = ["with_additions"]

_RANK, _TOP_K = 64, 16
_CONVOLUTION = {"kernel_size": 2, "group_size": 16}  # DFlash 2's own


def with_additions(
    drafter: DFlashDrafter, view: TargetView, recipe: Recipe, documents: Sequence[Document]
) -> DFlashDrafter:
    """``drafter``, or a new one with the parts that the recipe asks for and ``drafter`` lacks.

    Args:
        drafter: in float32.
        documents: whose answers choose the tokens of a reduced head.

    Raises:
        TrainingError: the drafter has another head than the recipe asks for, or one of other sizes.
    """
    described = deepcopy(drafter.config)
    described.num_target_layers = described.num_target_layers or view.num_layers  # they were found to fit
    head, size = _head_to_add(drafter.config, recipe), recipe.draft_vocab_size
    if head is not None:
        described.head = head
        described.stored_vocab_size = described.stored_vocab_size or view.vocab_rows
        if head["kind"] == "selector" and described.convolution is None:
            described.convolution = dict(_CONVOLUTION)
    if size is not None:
        _refuse_other_size(drafter.config, size)
    reduces = size is not None and drafter.config.draft_vocab_size is None
    if reduces:
        described.draft_vocab_size, described.reduced_vocabulary = size, True
        described.inherits_logit_scale = False  # the rows it begins with are multiplied already
    if head is None and not reduces:
        return drafter
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        made = DFlashDrafter(described)
        _begin_as_nothing(made, drafter)
    made.load_state_dict(drafter.state_dict(), strict=False)
    if reduces:
        _copy_rows(made, view, documents)
    made.provenance = drafter.provenance
    return _for_speculators(made, view).float()


def _head_to_add(config: DFlashConfig, recipe: Recipe) -> dict[str, Any] | None:
    """The description of the recipe's head; None where none is asked for, or the drafter has it."""
    if recipe.head is None:
        return None
    asked: dict[str, Any] = {"kind": recipe.head}
    if recipe.head == "markov":
        asked |= {"type": "vanilla", "rank": recipe.markov_rank or _RANK, "confidence": None}
        given = {"rank": recipe.markov_rank}
    else:
        asked |= {"rank": recipe.selector_rank or _RANK, "top_k": recipe.selector_top_k or _TOP_K}
        given = {"rank": recipe.selector_rank, "top_k": recipe.selector_top_k}
    has = config.head
    if has["kind"] == "parallel":
        return asked
    if has["kind"] != recipe.head:
        raise TrainingError(
            f"head: {recipe.head} is asked for, the drafter to start from has a {has['kind']} head; leave head out to "
            "train that one"
        )
    if other := [f"{key} {has[key]}, not {value}" for key, value in given.items() if value not in (None, has[key])]:
        raise TrainingError(f"the {recipe.head} head of the drafter to start from has {', '.join(other)}")
    return None


def _refuse_other_size(config: DFlashConfig, size: int) -> None:
    if config.draft_vocab_size not in (None, size):
        raise TrainingError(
            f"draft_vocab_size={size}: the drafter to start from has a head of {config.draft_vocab_size} rows of its "
            "own; leave it out to train with those"
        )


@torch.no_grad()
def _begin_as_nothing(made: DFlashDrafter, drafter: DFlashDrafter) -> None:
    """The second table of a low-rank correction starts at zero, the first is spread: gradients reach the second."""
    if made.config.head != drafter.config.head:
        if isinstance(made.head, MarkovHead):
            made.head.markov_w1.weight.normal_()
            made.head.markov_w2.weight.zero_()
        if isinstance(made.head, SelectorHead):
            made.head.predecessor_codebook.weight.normal_()
            made.head.successor_codebook.weight.zero_()
    if drafter.config.convolution is None:
        for module in made.modules():
            if isinstance(module, BlockConvolution):
                module.base_kernel[:, 0] = 1.0  # the slot itself
                module.kernel_projection.weight.zero_()


@torch.no_grad()
def _copy_rows(made: DFlashDrafter, view: TargetView, documents: Sequence[Document]) -> None:
    """The target's rows, with its multiplier: a head of the drafter's own is not scaled."""
    ids = frequent_tokens(view, documents, made.config.draft_vocab_size or 0)
    weight, _ = head_parameters(view)
    made.vocabulary.copy_(ids)
    made.lm_head.weight.copy_(weight[ids.to(weight.device)] * view.logit_multiplier)


def _for_speculators(made: DFlashDrafter, view: TargetView) -> DFlashDrafter:
    """Embeddings as the layout of these parts has them: the target's raw rows, or a table where those mean another.

    A reduced head, and a Markov head whose slots say their own place, can be written in speculators' layout alone.
    """
    config = made.config
    same_place = config.head["kind"] == "markov" and config.first_slot == 1
    if config.embedding != "target" or not (config.reduced_vocabulary or same_place):
        return made
    some = torch.arange(min(8, view.vocab_rows))[None]
    if not torch.equal(view.embed(some, "target") * config.embedding_scale, view.embed(some, "target_rows")):
        return settled(made, view.model).train()
    settle_scale(config, view)
    config.embedding = "target_rows"
    return made
