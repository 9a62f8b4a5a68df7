"""Where a new drafter starts: its shape from the target's, its weights random or from layers of the target.

A drafter layer is a Qwen3 layer; a Llama-like target's layer fits it but for the query and key norms, which the
target lacks: they start at the root mean square its queries and keys have, so that attention is about as sharp.
"""

from __future__ import annotations

import torch

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import TrainingError
from dflash_hf.target.view import TargetView
from dflash_hf.training.recipe import Recipe

__all__ = ["new_drafter"]


def new_drafter(view: TargetView, recipe: Recipe) -> DFlashDrafter:
    """A drafter for this target as the recipe describes it, in float32 on the CPU."""
    text = view.text_config
    rope = dict(getattr(text, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 10000.0})
    config = DFlashConfig(
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_hidden_layers=recipe.num_hidden_layers,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=text.num_key_value_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        target_layer_ids=recipe.target_layer_ids,
        num_target_layers=view.num_layers,
        block_size=recipe.block_size,
        mask_token_id=recipe.mask_token_id,
        layer_causal=[recipe.causal] * recipe.num_hidden_layers,
        rope_parameters=rope,
        max_position_embeddings=text.max_position_embeddings,
        rms_norm_eps=text.rms_norm_eps,
        hidden_act=text.hidden_act,
        vocab_size=view.vocab_rows,
        target_name=recipe.target_name or view.public_name,
    )
    torch.manual_seed(recipe.seed)
    drafter = DFlashDrafter(config)
    if recipe.warm_layers:
        _copy_layers(view, drafter, recipe)
    return drafter.float()


@torch.no_grad()
def _copy_layers(view: TargetView, drafter: DFlashDrafter, recipe: Recipe) -> None:
    """Layer weights from the target; ``fc`` starts as "the last tap", normed as the first copied layer norms it."""
    _copy_final_norm(view, drafter)
    for layer, source in zip(drafter.layers, recipe.warm_layers, strict=True):
        origin = dict(view.layers[source].named_parameters())
        for name, parameter in layer.named_parameters():
            if name in origin:
                if origin[name].shape != parameter.shape:
                    raise TrainingError(
                        f"layer {source} of {view.name}: {name} is {tuple(origin[name].shape)}, "
                        f"the drafter's is {tuple(parameter.shape)}; set warm_layers to []"
                    )
                parameter.copy_(origin[name])
            elif name in _HEAD_NORMS:
                projection = origin[_HEAD_NORMS[name]] * origin["input_layernorm.weight"]
                parameter.fill_(float(projection.pow(2).sum(dim=1).mean().sqrt()))  # of unit-variance input
    width = view.hidden_size
    drafter.fc.weight.zero_()
    drafter.fc.weight[:, -width:] = torch.eye(width)
    first = view.layers[recipe.warm_layers[0]]
    drafter.hidden_norm.weight.copy_(first.get_parameter("input_layernorm.weight"))


_HEAD_NORMS = {
    "self_attn.q_norm.weight": "self_attn.q_proj.weight",
    "self_attn.k_norm.weight": "self_attn.k_proj.weight",
}


def _copy_final_norm(view: TargetView, drafter: DFlashDrafter) -> None:
    """The copied weights mean the same only if the target's norms compute what the drafter's do."""
    theirs, ours = view.final_norm, drafter.norm
    weight = None if theirs is None else dict(theirs.named_parameters()).get("weight")
    if theirs is None or weight is None or weight.shape != ours.weight.shape:
        raise TrainingError(f"{view.name} has no final norm like the drafter's; set warm_layers to []")
    ours.weight.copy_(weight)
    sample = torch.linspace(-2, 2, view.hidden_size)[None]
    if not torch.allclose(ours(sample), theirs(sample.to(weight.dtype)).float(), atol=1e-2, rtol=1e-2):
        raise TrainingError(f"{view.name} norms otherwise than the drafter does; set warm_layers to []")
