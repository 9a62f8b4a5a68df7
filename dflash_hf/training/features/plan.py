"""On the fly or from a cache: what each costs, and which it will be, said before work starts.

In: documents, the target, what a cache holds already, bound and free disk, epochs, the target's speed. Out: a
``FeaturePlan``. Nothing is run but one batch of the target, and not even that when its speed is given.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from dflash_hf.errors import TrainingError
from dflash_hf.target.view import TargetView
from dflash_hf.training.documents import Document
from dflash_hf.training.features.cache import CacheDescription, FeatureCache, document_key
from dflash_hf.training.features.features import OnTheFly, length_batches
from dflash_hf.training.features.fill import documents_to_make
from dflash_hf.training.figures import size, spell

__all__ = ["FeatureMode", "FeaturePlan", "measured_speed", "plan"]

FeatureMode = Literal["auto", "cached", "online"]
_MEASURED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class FeaturePlan:
    """Costs in tokens, bytes and seconds of target forwards; ``mode`` is the choice, ``reason`` says why."""

    mode: Literal["cached", "online"]
    reason: str
    documents: int
    tokens: int  # that the target reads in an epoch
    layer_ids: tuple[int, ...]  # that a cache holds or will hold
    epochs: int
    held: int  # documents in the cache now
    left_out: int  # documents that the bound keeps out of it
    disk_bytes: int  # of the cache now
    missing_bytes: int  # that filling it within the bound adds
    whole_bytes: int  # of a cache with all documents
    limit_bytes: int
    free_bytes: int
    tokens_per_second: float
    fill_seconds: float  # once
    cached_seconds: float  # filling, and in every epoch the documents left out
    online_seconds: float  # all epochs

    def lines(self) -> list[str]:
        """What is shown before work starts."""
        layers, plural = ", ".join(map(str, self.layer_ids)), "" if self.epochs == 1 else "s"
        return [
            f"features of {self.documents:,} documents, {self.tokens:,} tokens, layers {layers}; the target reads "
            f"{self.tokens_per_second:,.0f} tokens/s",
            f"on the fly: {spell(self.online_seconds / self.epochs)} of the target an epoch, "
            f"{spell(self.online_seconds)} in {self.epochs} epoch{plural}, no disk",
            f"cached: {spell(self.cached_seconds)} of the target in {self.epochs} epoch{plural}; "
            f"{self.held:,} documents are held ({size(self.disk_bytes)}), {size(self.missing_bytes)} to come, "
            f"{self.left_out:,} documents stay on the fly; all take {size(self.whole_bytes)}, "
            f"the bound is {size(self.limit_bytes)}, {size(self.free_bytes)} are free",
            f"chosen: {'cached' if self.mode == 'cached' else 'on the fly'}, {self.reason}",
        ]


def plan(
    documents: Sequence[Document],
    view: TargetView,
    layer_ids: Sequence[int],
    *,
    final: bool = False,
    mode: FeatureMode = "auto",
    limit_bytes: int,
    free_bytes: int,
    epochs: int = 1,
    cached_already: FeatureCache | None = None,
    tokens_per_second: float | None = None,
    batch_tokens: int = 8192,
) -> FeaturePlan:
    """What the features of these documents cost on the fly and cached, and the choice between them.

    Args:
        documents: of one epoch.
        view: the target.
        layer_ids: tapped layers.
        final: whether the final state is wanted too.
        mode: "auto" caches when all documents fit the bound and the disk and it saves time, and the cache that is there
            is of this target and has these layers; "online" looks at no cache.
        limit_bytes: most bytes of the cache.
        free_bytes: that may be written where the cache is or will be (``training.features.writer.free_bytes``).
        epochs: how often every document is read.
        cached_already: the cache that is there.
        tokens_per_second: of the target; None measures one batch.
        batch_tokens: most tokens of a forward.

    Raises:
        TrainingError: no documents; or with mode "cached" a cache of another target or without a layer, or no disk for
            what the bound allows.
    """
    if not documents:
        raise TrainingError("there are no documents to make features of; make answers with `dflash-hf data regenerate`")
    cached_already, refusal = _usable(cached_already, view, layer_ids, final, mode)
    description = CacheDescription.of(view, layer_ids, final) if cached_already is None else cached_already.description
    chosen, left_out = documents_to_make(documents, cached_already, description, limit_bytes)
    keys = [document_key(document.ids) for document in documents]
    held = [cached_already is not None and key in cached_already for key in keys]
    lengths = [len(document.ids) - 1 for document in documents]
    speed = tokens_per_second or measured_speed(view, documents, layer_ids, final=final, batch_tokens=batch_tokens)
    tokens, missing = sum(lengths), sum(lengths[place] for place in chosen)
    held_tokens = sum(length for length, here in zip(lengths, held, strict=True) if here)
    outside = tokens - held_tokens - missing if left_out else 0
    missing_bytes = sum(description.document_bytes(len(documents[place].ids)) for place in chosen)
    fill, cached, online = missing / speed, (missing + outside * epochs) / speed, tokens * epochs / speed
    choice, reason = _choose(mode, refusal, left_out, missing_bytes, limit_bytes, free_bytes, cached, online)
    return FeaturePlan(
        mode=choice,
        reason=reason,
        documents=len(documents),
        tokens=tokens,
        layer_ids=description.layer_ids,
        epochs=epochs,
        held=sum(held),
        left_out=left_out,
        disk_bytes=0 if cached_already is None else cached_already.bytes,
        missing_bytes=missing_bytes,
        whole_bytes=sum(description.document_bytes(len(document.ids)) for document in documents),
        limit_bytes=limit_bytes,
        free_bytes=free_bytes,
        tokens_per_second=speed,
        fill_seconds=fill,
        cached_seconds=cached,
        online_seconds=online,
    )


def _usable(
    cache: FeatureCache | None, view: TargetView, layer_ids: Sequence[int], final: bool, mode: FeatureMode
) -> tuple[FeatureCache | None, str]:
    """The cache, where this run can read it; else None, and why not."""
    if cache is None or mode == "online":
        return None, ""
    try:
        cache.description.refuse_target(view, cache.folder)
        cache.description.refuse_layers(layer_ids, final, cache.folder)
    except TrainingError as error:
        if mode == "cached":
            raise
        return None, str(error)
    return cache, ""


def measured_speed(
    view: TargetView,
    documents: Sequence[Document],
    layer_ids: Sequence[int],
    *,
    final: bool = False,
    batch_tokens: int = 8192,
) -> float:
    """Tokens per second of the target over one batch of documents of middling length, cut to about five seconds.

    One document before it warms up and tells how many that is.
    """
    source = OnTheFly(view, layer_ids, final=final, batch_tokens=batch_tokens)
    batches = length_batches([len(document.ids) - 1 for document in documents], batch_tokens)
    batch = [documents[place] for place in batches[len(batches) // 2]]
    rough = _timed(source, batch[:1])
    return _timed(source, batch[: max(1, int(rough * _MEASURED_SECONDS / len(batch[0].ids)))])


def _timed(source: OnTheFly, documents: list[Document]) -> float:
    """Tokens per second."""
    started = time.perf_counter()
    source.of(documents)
    _finish(source.view)
    return sum(len(document.ids) - 1 for document in documents) / (time.perf_counter() - started)


def _finish(view: TargetView) -> None:
    if view.device.type != "cpu":
        torch.accelerator.synchronize(view.device)


def _choose(
    mode: FeatureMode,
    refusal: str,
    left_out: int,
    missing: int,
    limit: int,
    free: int,
    cached: float,
    online: float,
) -> tuple[Literal["cached", "online"], str]:
    if mode == "online":
        return "online", "as asked"
    if mode == "cached":
        if missing > free:
            raise TrainingError(
                f"a cache within the bound of {size(limit)} takes {size(missing)} more, {size(free)} are free; give "
                "a lower bound, another folder, or compute the features on the fly"
            )
        return "cached", "as asked"
    if refusal:
        return "online", refusal
    if left_out:
        return "online", f"all documents do not fit the bound of {size(limit)}"
    if missing > free:
        return "online", f"there is no disk for another {size(missing)}"
    if cached >= online:
        return "online", "a cache saves no time: each document is read once"
    return "cached", f"which saves {spell(online - cached)}"
