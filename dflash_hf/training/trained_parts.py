"""Which of a drafter's weights a run trains, and which drafters it can train at all.

Embedding and LM head stay as they are, whether the drafter borrows or owns them: a head's rows are the target's or were
trained by somebody who could afford to, and the network learns to speak through them. So does a confidence head, which
no text depends on. ``freeze: backbone`` leaves the Markov head or the selector alone to be trained.
"""

from __future__ import annotations

from dflash_hf.checkpoints.expressible import beyond_v1
from dflash_hf.checkpoints.layouts import layout
from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import CheckpointError, TrainingError
from dflash_hf.training.recipe import Recipe

__all__ = ["freeze", "layout_for", "untrainable"]

_TRAINABLE = frozenset({"first_slot", "draft_vocab_size", "reduced_vocabulary", "head", "embedding", "convolution"})
_FROZEN = ("embed_tokens.", "lm_head.", "head.confidence_proj.")


def untrainable(config: DFlashConfig) -> list[str]:
    """What a drafter has that no loss here would reach, in words."""
    found, head = beyond_v1(config, _TRAINABLE), config.head
    vanilla = head["kind"] == "markov" and head["type"] == "vanilla" and head["rank"]
    if head["kind"] == "markov" and not vanilla:
        found.append(f"a Markov head of type {head['type']} and rank {head['rank']} (vanilla ones are trained)")
    elif head["kind"] not in ("parallel", "markov", "selector"):
        found.append(f"a {head['kind']} head")
    if any(config.layer_windows) and config.window_rule != "query":
        found.append("windows that are not counted from each slot's own place")
    return found


def freeze(drafter: DFlashDrafter, recipe: Recipe) -> None:
    """Let gradients reach what this run trains.

    Raises:
        TrainingError: the backbone is to be frozen, and there is nothing else.
    """
    if recipe.freeze == "backbone" and drafter.config.head["kind"] == "parallel":
        raise TrainingError("freeze: backbone leaves nothing to train; give a head: markov or selector")
    for name, parameter in drafter.named_parameters():
        head = name.startswith("head.")
        parameter.requires_grad_(not name.startswith(_FROZEN) and (head or recipe.freeze is None))


def layout_for(drafter: DFlashDrafter) -> str:
    """The layout a trained drafter is written in: z-lab's, else speculators'.

    Raises:
        TrainingError: neither can express it, with what each lacks.
    """
    problems = []
    for name in ("zlab", "speculators"):
        try:
            layout(name).describe(drafter.config, drafter.dtype)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        return name
    raise TrainingError(f"no layout could hold the trained drafter: {'; '.join(problems)}")
