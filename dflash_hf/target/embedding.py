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
from dflash_hf.target.devices import computing_device
from dflash_hf.target.plain_weights import unreadable

__all__ = ["embed_as_module", "embed_raw", "hidden_rows"]

_NORM, _SCALE = "embed_norm", "embed_scale"  # what embedding modules call what they do to their rows


def embed_as_module(embedding: nn.Module, token_ids: Tensor) -> Tensor:
    """What the module gives for ids [B, K], scale and all, but for a norm of its own: [B, K, D].

    A norm inside the module (Muse, Inkling) is no scale: drafters were trained without it, and transformers' own DFlash
    leaves it out as well.
    """
    return embed_raw(embedding, token_ids) if _does(embedding, _NORM) else _called(embedding, token_ids)


def embed_raw(embedding: nn.Module, token_ids: Tensor) -> Tensor:
    """The module's rows [B, K, D] for ids [B, K], without any factor or norm.

    Raises:
        UnsupportedTargetError: the rows are packed (quantised, or under an adapter) in a module that changes them.
    """
    if not (_does(embedding, _NORM) or _does(embedding, _SCALE)):
        return _called(embedding, token_ids)  # called, not read: nothing is done to its rows
    if why := hidden_rows(embedding, "target_rows"):
        raise UnsupportedTargetError(f"the drafter takes the target's raw embedding rows, but {why}")
    with _in_memory(embedding):
        weight = embedding.get_parameter("weight")
        return nn.functional.embedding(token_ids.to(weight.device), weight)


def hidden_rows(embedding: nn.Module, source: str) -> str | None:
    """Why a drafter whose blocks are embedded as ``source`` says cannot have its rows of this module, or None."""
    if not (_does(embedding, _NORM) or (source == "target_rows" and _does(embedding, _SCALE))):
        return None
    weight = embedding._parameters.get("weight")  # a wrapper lends its inner module's weight as its own attribute
    why = "wrapped by an adapter" if weight is None else unreadable(weight)
    if why in (None, "offloaded"):
        return None
    return (
        f"the target's {type(embedding).__name__} changes its rows, which cannot be read: it is {why}; load the target "
        "with an unquantised embedding, without an adapter on it"
    )


def _does(embedding: nn.Module, change: str) -> bool:
    return any(getattr(part, change, None) is not None for part in embedding.modules())


def _called(embedding: nn.Module, token_ids: Tensor) -> Tensor:
    embedded: Tensor = embedding(token_ids.to(computing_device(embedding, token_ids.device)))
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
