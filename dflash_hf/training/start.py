"""Where a run starts: a drafter that exists, or a new one with weights that are random or from the target's layers.

A drafter layer is a Qwen3 layer; a Llama-like target's layer fits it but for the query and key norms, which the
target lacks: they start at the root mean square its queries and keys have, so that attention is about as sharp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import TrainingError
from dflash_hf.target.pairing import check_pair, pair_view
from dflash_hf.target.plain_weights import unreadable
from dflash_hf.target.view import TargetView
from dflash_hf.training.additions import with_additions
from dflash_hf.training.checkpoint import drafter_of_run, holds_run
from dflash_hf.training.documents import Document
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.shape import config_for
from dflash_hf.training.trained_parts import layout_for, untrainable

__all__ = ["starting_drafter"]


def starting_drafter(view: TargetView, recipe: Recipe, documents: Sequence[Document] = ()) -> DFlashDrafter:
    """The drafter a run begins with, in float32 on the CPU; ``documents`` choose the tokens of a reduced head.

    Raises:
        TrainingError: the recipe contradicts the drafter it starts from, or lacks what a new drafter needs.
        DFlashError: the drafter to start from cannot be loaded, or does not fit the target.
    """
    drafter = _existing(view, recipe) if recipe.start_from else _new(view, recipe)
    check_pair(view.model, drafter)
    drafter = with_additions(drafter.float(), view, recipe, documents)
    if drafter.config.head["kind"] == "selector" and recipe.head_sample is not None:
        raise TrainingError("a selector chooses among the best of all tokens, not of a sample; leave head_sample out")
    pair_view(view.model, drafter)  # what was added fits too
    layout_for(drafter)
    return drafter


def _existing(view: TargetView, recipe: Recipe) -> DFlashDrafter:
    folder = Path(recipe.start_from)
    drafter = (
        drafter_of_run(folder)
        if holds_run(folder)
        else DFlashDrafter.from_pretrained(recipe.start_from, dtype=torch.float32, target=view.model)
    )
    config = drafter.config
    if more := untrainable(config):
        raise TrainingError(
            f"{recipe.start_from} cannot be trained on by this version, which trains DFlash drafters, with a Markov "
            f"head or a selector or neither: it has {'; '.join(more)}"
        )
    has = {
        "target_layer_ids": tuple(config.target_layer_ids),
        "num_hidden_layers": config.num_hidden_layers,
        "intermediate_size": config.intermediate_size,
        "mask_token_id": config.mask_token_id,
        "first_slot": config.first_slot,
        "causal": all(config.layer_causal) if len(set(config.layer_causal)) == 1 else None,
        "sliding_window": config.layer_windows[0] if len(set(config.layer_windows)) == 1 else None,
    }
    wanted = {key: getattr(recipe, key) for key in has if getattr(recipe, key) is not None}
    if other := [f"{key} is {has[key]}, the recipe says {value}" for key, value in wanted.items() if has[key] != value]:
        raise TrainingError(
            f"{recipe.start_from}: {'; '.join(other)}. Take these keys out of the recipe to train it as it is"
        )
    if recipe.block_size is not None:
        config.block_size = recipe.block_size
        config.num_draft_tokens = recipe.block_size - config.first_slot
    config.target_name = recipe.target_name or view.public_name
    return drafter


def _new(view: TargetView, recipe: Recipe) -> DFlashDrafter:
    config = config_for(view, recipe)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        drafter = DFlashDrafter(config)
    if recipe.warm_layers:
        _copy_layers(view, drafter, recipe.warm_layers)
    return drafter


@torch.no_grad()
def _copy_layers(view: TargetView, drafter: DFlashDrafter, sources: tuple[int, ...]) -> None:
    """Layer weights from the target; ``fc`` starts as "the last tap", normed as the first copied layer norms it."""
    if outside := [layer for layer in sources if not 0 <= layer < view.num_layers]:
        raise TrainingError(f"warm_layers {outside}: {view.public_name} has layers 0 to {view.num_layers - 1}")
    _copy_final_norm(view, drafter)
    for layer, source in zip(drafter.layers, sources, strict=True):
        origin = dict(view.layers[source].named_parameters())
        _refuse_unreadable(view, source, origin)
        for name, parameter in layer.named_parameters():
            if name in origin:
                if origin[name].shape != parameter.shape:
                    raise TrainingError(
                        f"layer {source} of {view.public_name}: {name} is {tuple(origin[name].shape)}, "
                        f"the drafter's is {tuple(parameter.shape)}; set warm_layers to []"
                    )
                parameter.copy_(origin[name])
            elif name in _HEAD_NORMS:
                projection = origin[_HEAD_NORMS[name]] * origin["input_layernorm.weight"]
                parameter.fill_(float(projection.pow(2).sum(dim=1).mean().sqrt()))  # of unit-variance input
    width = view.hidden_size
    drafter.fusion.fc.weight.zero_()
    drafter.fusion.fc.weight[:, -width:] = torch.eye(width)
    first = view.layers[sources[0]]
    drafter.fusion.norm.weight.copy_(first.get_parameter("input_layernorm.weight"))


def _refuse_unreadable(view: TargetView, source: int, origin: Mapping[str, Tensor]) -> None:
    """Integers of the right shape would be copied as if they were weights."""
    found = {name: why for name, weight in origin.items() if (why := unreadable(weight)) is not None}
    found |= {name: "wrapped by an adapter" for name in origin if ".base_layer." in name}
    for name, why in found.items():
        raise TrainingError(
            f"layer {source} of {view.public_name}: {name} is {why} and cannot be copied; load the target "
            "unquantised, not offloaded, and with its adapters merged, or set warm_layers to []"
        )


_HEAD_NORMS = {
    "self_attn.q_norm.weight": "self_attn.q_proj.weight",
    "self_attn.k_norm.weight": "self_attn.k_proj.weight",
}


def _copy_final_norm(view: TargetView, drafter: DFlashDrafter) -> None:
    """The copied weights mean the same only if the target's norms compute what the drafter's do."""
    theirs, ours = view.final_norm, drafter.norm
    weight = None if theirs is None else dict(theirs.named_parameters()).get("weight")
    if theirs is None or weight is None or weight.shape != ours.weight.shape:
        raise TrainingError(f"{view.public_name} has no final norm like the drafter's; set warm_layers to []")
    ours.weight.copy_(weight)
    sample = torch.linspace(-2, 2, view.hidden_size)[None]
    if not torch.allclose(ours(sample), theirs(sample.to(weight.dtype)).float(), atol=1e-2, rtol=1e-2):
        raise TrainingError(f"{view.public_name} norms otherwise than the drafter does; set warm_layers to []")
