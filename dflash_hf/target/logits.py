"""What becomes of a head's output before it is a logit: for the target, and for a drafter that borrows its head."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_hf.config import DFlashConfig
from dflash_hf.target.view import TargetView

__all__ = ["Scale", "drafter_scale", "target_scale"]


@dataclass(frozen=True, slots=True)
class Scale:
    """Times ``multiplier``, then ``softcap * tanh(x / softcap)``."""

    multiplier: float = 1.0
    softcap: float | None = None


def target_scale(view: TargetView) -> Scale:
    """How the target scales its logits."""
    return Scale(view.logit_multiplier, view.logit_softcap)


def drafter_scale(config: DFlashConfig, view: TargetView) -> Scale:
    """How a drafter's logits are scaled: by its own values, and by the target's where its config has none.

    A drafter that borrows the head was trained on what the target makes of it (z-lab's MLX loader does the same); one
    with a head of its own has nothing from the target, nor has one whose authors' code calls the bare head
    (transformers' Muse assistant, speculators). A multiplier of 1 in the drafter's files is its own.
    """
    inherited = target_scale(view) if config.inherits_logit_scale else Scale()
    multiplier, softcap = config.output_multiplier, config.final_logit_softcapping
    return Scale(
        inherited.multiplier if multiplier is None else multiplier, inherited.softcap if softcap is None else softcap
    )
