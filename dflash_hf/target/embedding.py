"""Embeddings of a target, with and without what its embedding module does besides looking rows up.

The module may be quantised, or offloaded by accelerate: its weight is then on no device, and its hook brings it for a
call. Shapes: B rows, K ids, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dflash_hf.errors import UnsupportedTargetError

__all__ = ["embed_as_module", "embed_raw"]

_MORE_THAN_ROWS = ("embed_scale", "embed_norm")  # what embedding modules call their factor and their norm


def embed_as_module(embedding: nn.Module, token_ids: Tensor) -> Tensor:
    """What the module gives for ids [B, K], scale and all, but for a norm of its own: [B, K, D].

    A norm inside the module (Muse, Inkling) is no scale: drafters were trained without it, and transformers' own DFlash
    leaves it out as well.
    """
    if getattr(embedding, "embed_norm", None) is not None:
        return embed_raw(embedding, token_ids)
    return _called(embedding, token_ids)


def embed_raw(embedding: nn.Module, token_ids: Tensor) -> Tensor:
    """The module's rows [B, K, D] for ids [B, K], without any factor or norm.

    Raises:
        UnsupportedTargetError: the rows are packed (quantised, or under an adapter) in a module that scales them.
    """
    with _in_memory(embedding):
        weight = embedding._parameters.get("weight")  # a wrapper lends its inner module's weight as its own attribute
        if weight is not None and weight.is_floating_point() and weight.device.type != "meta":
            return nn.functional.embedding(token_ids.to(weight.device), weight)
    inner = getattr(embedding, "base_layer", embedding)
    if more := [name for name in _MORE_THAN_ROWS if getattr(inner, name, None) is not None]:
        raise UnsupportedTargetError(
            f"the drafter takes the target's raw embedding rows, but {type(embedding).__name__} holds them packed and "
            f"applies {' and '.join(more)} to them; load the target with an unquantised embedding in memory, without "
            "an adapter on it"
        )
    return _called(embedding, token_ids)


def _called(embedding: nn.Module, token_ids: Tensor) -> Tensor:
    parameter = next(embedding.parameters(), None)
    if parameter is not None and parameter.device.type != "meta":  # else its hook moves the ids
        token_ids = token_ids.to(parameter.device)
    embedded: Tensor = embedding(token_ids)
    return embedded


@contextmanager
def _in_memory(embedding: nn.Module) -> Iterator[None]:
    """While open, an offloaded module's weights are where its hook would bring them for a call."""
    if all(parameter.device != torch.device("meta") for parameter in embedding.parameters(recurse=False)):
        yield
        return
    from accelerate.utils import align_module_device

    with align_module_device(embedding):
        yield
