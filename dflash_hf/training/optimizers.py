"""Which optimiser moves which weight: AdamW for all, or Muon for the layers' matrices and AdamW for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from dflash_hf.errors import TrainingError
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.schedule import rate_factor

__all__ = ["Optimizers", "refuse_missing_optimizer"]


class Optimizers:
    """The optimisers of one run as one.

    Muon (Keller Jordan et al., 2024) orthogonalises the update of a matrix. Here its update is scaled to AdamW's root
    mean square, so that both learn at rates of one order; vectors and norms stay with AdamW.

    Raises:
        TrainingError: the recipe asks for Muon and this torch has none.
    """

    def __init__(self, module: nn.Module, recipe: Recipe) -> None:
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        parameters = [parameter for _, parameter in named]
        matrices = [  # tables of tokens are no maps between spaces: a head's stay with AdamW
            parameter
            for name, parameter in named
            if recipe.optimizer == "muon" and parameter.ndim == 2 and not re.search(r"(^|\.)head\.", name)
        ]
        chosen = set(map(id, matrices))
        others = [parameter for parameter in parameters if id(parameter) not in chosen]
        self.each: list[torch.optim.Optimizer] = []
        if others:
            self.each.append(
                torch.optim.AdamW(others, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay)
            )
        if matrices:
            self.each.append(_muon(matrices, recipe))
        self._rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.each]

    def set_rate(self, step: int, steps: int, warmup: float) -> None:
        factor = rate_factor(step, steps, warmup)
        for optimizer, rates in zip(self.each, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def zero_grad(self) -> None:
        for optimizer in self.each:
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        for optimizer in self.each:
            optimizer.step()

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.each]

    def load_state_dict(self, states: Iterable[dict[str, Any]]) -> None:
        for optimizer, state in zip(self.each, states, strict=True):
            optimizer.load_state_dict(state)


def refuse_missing_optimizer(recipe: Recipe) -> None:
    """Raises TrainingError when the recipe asks for Muon and this torch has none."""
    if recipe.optimizer == "muon" and not hasattr(torch.optim, "Muon"):
        raise TrainingError(f"torch {torch.__version__} has no Muon (2.9 brought it); set optimizer to adamw")


def _muon(matrices: list[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    refuse_missing_optimizer(recipe)
    return torch.optim.Muon(
        matrices,
        lr=recipe.muon_learning_rate or recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
