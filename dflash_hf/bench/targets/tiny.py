"""A tiny random model of one architecture, in float32 on the CPU, whose greedy text varies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dflash_hf.bench.targets.names import Architecture
from dflash_hf.bench.targets.shrink import tiny_config
from dflash_hf.bench.targets.sizes import VOCAB
from dflash_hf.bench.targets.special import special_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["build", "prompt", "spread_weights", "spreads_of"]

_SPREADS = (0.25, 0.5, 0.12, 0.05)  # of weights, tried in this order until the text varies
_SPREADS_OF = {"zamba2": (0.12, 0.05)}  # its wide weights magnify rounding
_WIDE = ("embed", "lm_head", "wte", "word_embeddings", "emb.weight")


def spreads_of(model: PreTrainedModel) -> tuple[float, ...]:
    """How far weights may spread, to be tried in this order until the text varies."""
    return _SPREADS_OF.get(model.config.model_type, _SPREADS)


def build(architecture: Architecture) -> PreTrainedModel:
    """The model, with the weights its class gives it.

    Raises:
        Exception: whatever its config or its class raise; the caller says so.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_class: Any = getattr(transformers, architecture.model_class)
    config_class = getattr(model_class, "config_class", None) or CONFIG_MAPPING[architecture.model_type]
    torch.manual_seed(0)
    model = model_class._from_config(tiny_config(config_class, special_of(config_class.model_type))).eval().float()
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id, settings.bos_token_id = None, 0, 1
    return model


def spread_weights(model: PreTrainedModel, spread: float, seed: int = 0) -> None:
    """New random matrices, spread so widely that greedy text does not repeat one token."""
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 1.0 if any(part in name for part in _WIDE) else spread, generator=numbers)


def prompt(length: int = 7) -> torch.Tensor:
    """Ids [1, length], none of them special."""
    return torch.randint(2, VOCAB, (1, length), generator=torch.Generator().manual_seed(3))
