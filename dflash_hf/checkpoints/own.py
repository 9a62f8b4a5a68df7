"""Embedding and LM head that a drafter brings along, read off its tensors.

In: the tensors by their names in memory. Out: keyword arguments of ``DFlashConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.errors import CheckpointError

__all__ = ["read_own_parts", "rows_of"]


def rows_of(tensors: TensorTable, names: Mapping[str, str], canonical: str) -> int | None:
    """Rows of the tensor that is called ``canonical`` in memory; None where the files have none."""
    return next((tensors[name].shape[0] for name, found in names.items() if found == canonical), None)


def read_own_parts(
    body: Mapping[str, Any], tensors: TensorTable, names: Mapping[str, str], *, tables: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Whether there is an embedding and a head, and the vocabulary they are of.

    Args:
        body: what was read so far.
        tensors, names: of the files.
        tables: more tensors in memory with a row for every id of the target.
    """
    embedding, head = (rows_of(tensors, names, f"{part}.weight") for part in ("embed_tokens", "lm_head"))
    rows = {name: rows_of(tensors, names, name) for name in tables} | {"embed_tokens.weight": embedding}
    given = {name: count for name, count in rows.items() if count is not None}
    if len(set(given.values())) > 1:
        raise CheckpointError(f"the drafter's tables are of different vocabularies: {given}")
    stated, found = body.get("vocab_size"), next(iter(given.values()), None)
    if stated is not None and found is not None and stated != found:
        name = next(iter(given))
        raise CheckpointError(f"config.json: vocab_size is {stated}, but {name} has {found} rows")
    own: dict[str, Any] = {"vocab_size": stated or found}
    if embedding is not None:
        own["embedding"] = "own"
    if head is not None:
        own["draft_vocab_size"] = head
    return own
