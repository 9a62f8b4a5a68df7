"""The sizes of a new drafter: those of its target, under whatever names the target's config has them."""

from __future__ import annotations

from typing import Any

from dflash_hf.config import DFlashConfig
from dflash_hf.errors import TrainingError
from dflash_hf.target.view import TargetView
from dflash_hf.training.recipe import Recipe

__all__ = ["config_for", "default_layer_ids"]


def config_for(view: TargetView, recipe: Recipe) -> DFlashConfig:
    """The description of a new drafter for this target; the embedding's width is the drafter's.

    Raises:
        TrainingError: no mask token is named, or the target's heads do not tell their size.
    """
    if recipe.mask_token_id is None:
        raise TrainingError(
            f"a new drafter needs mask_token_id: a token that {view.public_name} never reads or writes, such as an "
            "unused special token"
        )
    if recipe.mask_token_id >= view.vocab_rows:
        raise TrainingError(
            f"mask_token_id={recipe.mask_token_id}: {view.public_name} embeds ids from 0 to {view.vocab_rows - 1}"
        )
    taps = list(recipe.target_layer_ids or default_layer_ids(view.num_layers))
    if outside := [layer for layer in taps if not 0 <= layer < view.num_layers]:
        raise TrainingError(f"target_layer_ids {outside}: {view.public_name} has layers 0 to {view.num_layers - 1}")
    text, width = view.text_config, view.hidden_size
    layers = recipe.num_hidden_layers or len(recipe.warm_layers) or min(5, view.num_layers)
    heads = _first(text, "num_attention_heads", "n_head")
    if not heads:
        raise TrainingError(f"{view.public_name}: its config names no num_attention_heads; train from a start_from")
    return DFlashConfig(
        hidden_size=width,
        intermediate_size=recipe.intermediate_size or _first(text, "intermediate_size", "n_inner") or 4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=_first(text, "num_key_value_heads") or heads,
        head_dim=_first(text, "head_dim") or width // heads,
        target_layer_ids=taps,
        num_target_layers=view.num_layers,
        block_size=recipe.block_size or 16,
        first_slot=_first_slot(recipe),
        mask_token_id=recipe.mask_token_id,
        layer_causal=[bool(recipe.causal)] * layers,
        layer_windows=[recipe.sliding_window] * layers,
        rope_parameters=_rope(text),
        max_position_embeddings=_first(text, "max_position_embeddings", "n_positions") or 32768,
        rms_norm_eps=_first(text, "rms_norm_eps") or 1e-6,
        hidden_act=_first(text, "hidden_act") or "silu",
        vocab_size=view.vocab_rows,
        target_name=recipe.target_name or view.public_name,
    )


def _first_slot(recipe: Recipe) -> int:
    """DSpark's anchor proposes too, and its engines read nothing else."""
    if recipe.first_slot is not None:
        return recipe.first_slot
    return 0 if recipe.head == "markov" else 1


def default_layer_ids(layers: int, taps: int = 5) -> list[int]:
    """Layers spread evenly from the second to the third-last (paper, appendix A.1).

    >>> default_layer_ids(36)
    [1, 9, 17, 25, 33]
    >>> default_layer_ids(4)
    [1]
    """
    first = min(1, layers - 1)
    last = max(layers - 3, first)
    count = min(taps, last - first + 1)
    return [round(first + number * (last - first) / max(1, count - 1)) for number in range(count)]


def _rope(text: Any) -> dict[str, Any]:
    """The target's rotary frequencies where one set serves all its layers and whole heads, else plain ones.

    A drafter layer turns whole heads, and all layers alike.
    """
    own = dict(getattr(text, "rope_parameters", None) or {})
    if "full_attention" in own:
        own = dict(own["full_attention"] or {})
    if own.get("partial_rotary_factor", 1.0) != 1.0 or "mrope_section" in own or "rope_theta" not in own:
        own = {"rope_type": "default", "rope_theta": own.get("rope_theta", 10000.0)}
    own.pop("partial_rotary_factor", None)  # 1, which files have no word for
    return own


def _first(config: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)
