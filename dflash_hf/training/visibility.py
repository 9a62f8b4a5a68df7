"""Who sees whom in a pack, in three exact forms of one predicate.

A slot sees the context rows of its own document strictly before its anchor, and the slots of its own block. The
anchor's own context row would give its successor away: it is never visible. A drafter layer's own rule, its window
and causality, comes on top (``drafter.masks.rule_allows``).

    dense    one bool mask [1, 1, Q, T + Q]: simple, memory grows with slots x rows
    flex     a FlexAttention block mask: for GPUs, skips what nobody sees
    chunked  rows of a few blocks against their own document, cut to what they see: for CPUs, memory bounded

Shapes: T context rows, A blocks of K slots, Q = A * K slots; keys are the context rows, then the slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from dflash_hf.drafter.masks import AttendWith, BlockLayout, rule_allows
from dflash_hf.errors import TrainingError
from dflash_hf.training.packs import Pack

__all__ = ["FORMS", "ChunkedLayout", "DenseLayout", "FlexLayout", "form_for", "lay_out", "sees"]

FORMS = ("auto", "dense", "flex", "chunked")


class Queries(NamedTuple):
    """What the predicate asks of slots [...]."""

    block: Tensor
    document: Tensor
    anchor: Tensor
    position: Tensor

    def at(self, index: Any) -> Queries:
        return Queries(*(part[index] for part in self))


class Keys(NamedTuple):
    """What the predicate asks of keys [...]: context rows have block -1."""

    block: Tensor
    document: Tensor
    position: Tensor

    def at(self, index: Any) -> Keys:
        return Keys(*(part[index] for part in self))


def sees(query: Queries, key: Keys) -> Tensor:
    """The predicate, element by element: own document before the own anchor, or own block."""
    before = (key.block < 0) & (key.document == query.document) & (key.position < query.anchor)
    return before | (key.block == query.block)


def _visible(query: Queries, key: Keys, window: int | None, causal: bool) -> Tensor:
    """The predicate and a layer's own rule together."""
    seen = sees(query, key)
    allowed = rule_allows(query.position - key.position, window=window, causal=causal)
    return seen if allowed is None else seen & allowed


def _queries_and_keys(pack: Pack) -> tuple[Queries, Keys]:
    """[Q] and [T + Q]."""
    slots = pack.ids.shape[1]
    block = torch.arange(len(pack.ids), device=pack.ids.device).repeat_interleave(slots)
    document, position = pack.block_documents[block], pack.positions.flatten()
    context = torch.full_like(pack.context_documents, -1)
    keys = Keys(
        torch.cat([context, block]),
        torch.cat([pack.context_documents, document]),
        torch.cat([pack.context_positions, position]),
    )
    return Queries(block, document, pack.anchors[block], position), keys


def form_for(form: str, device: torch.device | str) -> str:
    """The form that ``form`` means on this device: "auto" is flex on CUDA, else chunked.

    Raises:
        TrainingError: an unknown form, or flex on a CPU, where torch has no backward for it.
    """
    kind = torch.device(device).type
    if form not in FORMS:
        raise TrainingError(f"attention form {form!r} is not known; known: {', '.join(FORMS)}")
    if form == "flex" and kind == "cpu":
        raise TrainingError("FlexAttention cannot train on a CPU; set the attention form to auto, chunked or dense")
    if form == "auto":
        return "flex" if kind == "cuda" else "chunked"
    return form


def lay_out(pack: Pack, form: str, per_row: int = 16) -> BlockLayout:
    """The layout of ``pack`` in a form other than "auto"; ``per_row`` is how many blocks a chunk takes."""
    if form == "dense":
        return DenseLayout(pack)
    if form == "flex":
        return FlexLayout(pack)
    return ChunkedLayout(pack, per_row)


class DenseLayout:
    """One bool mask for torch's scaled dot product attention."""

    def __init__(self, pack: Pack) -> None:
        self._queries, self._keys = _queries_and_keys(pack)
        self._slots = pack.ids.shape[1]

    def for_rule(self, window: int | None, causal: bool) -> AttendWith:
        mask = _visible(self._queries.at((slice(None), None)), self._keys, window, causal)
        return AttendWith(ALL_ATTENTION_FUNCTIONS["sdpa"], mask[None, None], self._slots)


class FlexLayout:
    """A FlexAttention block mask; the predicate runs inside the kernel."""

    def __init__(self, pack: Pack) -> None:
        self._queries, self._keys = _queries_and_keys(pack)
        self._slots = pack.ids.shape[1]

    def for_rule(self, window: int | None, causal: bool) -> AttendWith:
        from torch.nn.attention.flex_attention import create_block_mask

        queries, keys = self._queries, self._keys
        device = queries.block.device

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return _visible(queries.at(query), keys.at(key), window, causal)

        # Uncompiled it would write the whole mask down first.
        create: Any = torch.compile(create_block_mask) if device.type == "cuda" else create_block_mask
        mask = create(visible, None, None, len(queries.block), len(keys.block), device=device)
        return AttendWith(_attend_flex, mask, self._slots)


def _attend_flex(module: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Any, **options: Any) -> Any:
    """Transformers' FlexAttention; under autocast the head norms leave float32, and the kernel wants one dtype."""
    attend = ALL_ATTENTION_FUNCTIONS["flex_attention"]
    return attend(module, queries.to(values.dtype), keys.to(values.dtype), values, mask, **options)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Neighbouring blocks of one document, and the part of its context that any of them sees."""

    document: int
    context: slice  # rows of the document
    mask: Tensor  # bool [slots, rows + slots]


class ChunkedLayout:
    """Chunks of ``per_row`` blocks: early blocks do not pay for late context, nor any for other documents."""

    def __init__(self, pack: Pack, per_row: int) -> None:
        self._queries, self._keys = _queries_and_keys(pack)
        self._contexts, self._slots = pack.context_lengths, pack.ids.shape[1]
        self._blocks = [  # document, first block, end
            (document, first, min(first + per_row, end))
            for document, (start, end) in enumerate(_spans(pack.block_counts))
            for first in range(start, end, per_row)
        ]
        self._anchors = pack.anchors.tolist()

    def for_rule(self, window: int | None, causal: bool) -> AttendWith:
        spans, rows = _spans(self._contexts), sum(self._contexts)
        chunks = []
        for document, first, end in self._blocks:
            anchors = self._anchors[first:end]
            context = slice(0 if window is None else max(0, min(anchors) - window + 1), max(anchors))
            slots = slice(first * self._slots, end * self._slots)
            start = spans[document][0]
            seen = [
                _visible(self._queries.at((slots, None)), self._keys.at(part), window, causal)
                for part in (
                    slice(start + context.start, start + context.stop),
                    slice(rows + slots.start, rows + slots.stop),
                )
            ]
            chunks.append(_Chunk(document, context, torch.cat(seen, dim=1)))
        return AttendWith(_attend_chunks, (self._contexts, chunks), self._slots)


def _attend_chunks(
    module: Any,
    queries: Tensor,  # [1, H, Q, E]
    keys: Tensor,  # [1, G, T + Q, E]
    values: Tensor,  # [1, G, T + Q, E]
    plan: tuple[tuple[int, ...], list[_Chunk]],
    *,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:  # [1, Q, H, E]
    contexts, chunks = plan
    slots = [len(chunk.mask) for chunk in chunks]
    # Split once: each slice of the whole would write a whole gradient.
    keys = keys.to(values.dtype)
    key_parts, value_parts = (part.split([*contexts, *slots], dim=2) for part in (keys, values))
    outputs = []
    for number, (chunk, query) in enumerate(zip(chunks, queries.to(values.dtype).split(slots, dim=2), strict=True)):
        seen_keys, seen_values = (
            torch.cat([parts[chunk.document][:, :, chunk.context], parts[len(contexts) + number]], dim=2)
            for parts in (key_parts, value_parts)
        )
        outputs.append(
            functional.scaled_dot_product_attention(
                query,
                seen_keys,
                seen_values,
                attn_mask=chunk.mask,
                scale=scaling,
                enable_gqa=query.shape[1] != seen_keys.shape[1],
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _spans(lengths: tuple[int, ...]) -> list[tuple[int, int]]:
    """First place and end of each, laid end to end.

    >>> _spans((2, 3))
    [(0, 2), (2, 5)]
    """
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    return [(end - length, end) for length, end in zip(lengths, ends, strict=True)]
