"""Fill a feature cache: run the target over documents once, as far as a bound allows.

In: the target, documents, a folder. Out: shards (``training.features.writer``) and a report of what is in and what is
not. A second start, or another process, makes only what is not held yet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_hf.errors import TrainingError
from dflash_hf.target.view import TargetView
from dflash_hf.training.documents import Document
from dflash_hf.training.features.cache import CacheDescription, FeatureCache, document_key
from dflash_hf.training.features.features import OnTheFly, length_batches
from dflash_hf.training.features.writer import SHARD_BYTES, FeatureWriter, free_bytes
from dflash_hf.training.figures import size

__all__ = ["FillReport", "cache_description", "documents_to_make", "fill"]


@dataclass(frozen=True, slots=True)
class FillReport:
    """What a fill leaves behind. Documents that are neither held nor left out are other processes' share."""

    documents: int  # all that were asked for
    held: int  # of them in the cache now
    made: int  # by this call
    left_out: int  # beyond the bound: computed on the fly
    bytes: int  # of the folder's shards now

    def lines(self) -> list[str]:
        """For people."""
        lines = [
            f"{self.held:,} of {self.documents:,} documents are in the cache ({self.made:,} new), {size(self.bytes)}"
        ]
        if self.left_out:
            lines.append(f"{self.left_out:,} are beyond the bound and will be computed on the fly")
        if others := self.documents - self.held - self.left_out:
            lines.append(f"{others:,} are the share of other processes")
        return lines


def cache_description(view: TargetView, layer_ids: Sequence[int], final: bool, folder: Path) -> CacheDescription:
    """What a cache in this folder says or will say; one that is there may hold more layers than are asked for.

    Raises:
        TrainingError: the target lacks a layer, or the folder is of another target or lacks a layer.
    """
    wanted = CacheDescription.of(view, layer_ids, final)
    if not FeatureCache.is_in(folder):
        return wanted
    found = CacheDescription.read(folder)
    found.refuse_target(view, folder)
    found.refuse_layers(layer_ids, final, folder)
    return found


def documents_to_make(
    documents: Sequence[Document], cache: FeatureCache | None, description: CacheDescription, limit_bytes: int
) -> tuple[list[int], int]:
    """Places of the documents to compute and store, in order, and how many of the others the bound leaves out.

    The first ones that fit are taken, so that processes which start one after another agree.
    """
    room = limit_bytes - (0 if cache is None else cache.bytes)
    taken: dict[str, bool] = {}  # key -> whether it fits; several documents may have the same tokens
    chosen: list[int] = []
    left_out = 0
    for place, document in enumerate(documents):
        key = document_key(document.ids)
        if cache is not None and key in cache:
            continue
        if key not in taken:
            room -= description.document_bytes(len(document.ids))
            taken[key] = room >= 0
            chosen += [place] if taken[key] else []
        left_out += not taken[key]
    return chosen, left_out


def fill(
    view: TargetView,
    documents: Sequence[Document],
    folder: str | Path,
    layer_ids: Sequence[int],
    *,
    final: bool = False,
    limit_bytes: int,
    shard: tuple[int, int] = (0, 1),
    batch_tokens: int = 8192,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FillReport:
    """Compute the features of documents and store them, as far as the bound allows; held ones are not made again.

    Args:
        view: the target.
        documents: the same ones in the same order for every process.
        folder: of the cache. One that holds more layers than are asked for is filled with all of its layers.
        layer_ids: layers to tap.
        final: whether to store the final state too.
        limit_bytes: most bytes of the folder's shards.
        shard: which of how many processes this is; document ``n`` belongs to process ``n`` modulo their number.
        batch_tokens: most tokens of a forward.
        shard_bytes: bytes of a file.
        progress: called with the tokens done and the tokens to do.

    Raises:
        TrainingError: another target's folder, or one that lacks a layer; too little disk (before any work), or a full
            one (what was written is whole).
    """
    path = Path(folder)
    description = cache_description(view, layer_ids, final, path)
    writer = FeatureWriter(path, description, limit_bytes=limit_bytes, shard=shard, shard_bytes=shard_bytes)
    source = OnTheFly(view, description.layer_ids, batch_tokens=batch_tokens)
    with writer:
        chosen, left_out = documents_to_make(documents, writer.cache, description, limit_bytes)
        _refuse_full_disk([documents[place] for place in chosen], description, path)
        own = [documents[place] for place in chosen if place % shard[1] == shard[0]]
        _compute(source, own, writer, progress)
    cache = FeatureCache(path)
    held = sum(document_key(document.ids) in cache for document in documents)
    return FillReport(len(documents), held, writer.added, left_out + writer.left_out, cache.bytes)


def _compute(
    source: OnTheFly, documents: list[Document], writer: FeatureWriter, progress: Callable[[int, int], None]
) -> None:
    """Batches of like length in a shuffled order, so that any first part is a fair sample and tells the time left."""
    lengths = [len(document.ids) - 1 for document in documents]
    batches = length_batches(lengths, source.batch_tokens)
    random.Random(0).shuffle(batches)
    done, total = 0, sum(lengths)
    for batch in batches:
        members = [documents[place] for place in batch]
        for document, features in zip(members, source.of(members), strict=True):
            writer.add(document.id, document.ids, features.taps)
        done += sum(lengths[place] for place in batch)
        progress(done, total)


def _refuse_full_disk(documents: list[Document], description: CacheDescription, folder: Path) -> None:
    need, free = (
        sum(description.document_bytes(len(document.ids)) for document in documents),
        free_bytes(folder),
    )
    if need > free:
        raise TrainingError(
            f"the features of {len(documents):,} documents take {size(need)}, {folder} has {size(free)} "
            "free; give a lower bound or another folder. Nothing was computed"
        )
