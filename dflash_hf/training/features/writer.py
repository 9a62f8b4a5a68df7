"""Features on disk, written: shards that appear whole, up to a bound, and can be gone on with after a kill.

In: features, one document after another. Out: a folder that ``training.features.cache`` reads. A shard is
written beside its place and renamed into it; one process at a time writes the shards of one number.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from dflash_hf.errors import TrainingError
from dflash_hf.training.features.cache import (
    SCHEMA,
    CacheDescription,
    FeatureCache,
    bytes_on_disk,
    document_key,
)

__all__ = ["SHARD_BYTES", "FeatureWriter", "free_bytes"]

SHARD_BYTES = 256 * 1024**2
SPARE_BYTES = 64 * 1024**2  # of disk, left free


def free_bytes(folder: str | Path) -> int:
    """Bytes that may still be written where ``folder`` is or will be."""
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    return max(0, shutil.disk_usage(place).free - SPARE_BYTES)


class FeatureWriter:
    """Adds documents to a cache, for the length of a ``with`` block; what is whole is kept however the block ends.

    Args:
        folder: of the cache; made when it is not there.
        description: of the cache (:meth:`CacheDescription.of`); one already there must say the same.
        limit_bytes: most bytes of all shards of the folder together.
        shard: which of how many processes this is, from 0.
        shard_bytes: bytes after which a file is closed; as many stand in memory.

    Raises:
        TrainingError: the folder holds another target's features or other layers, or another process writes this shard.
    """

    def __init__(
        self,
        folder: str | Path,
        description: CacheDescription,
        *,
        limit_bytes: int,
        shard: tuple[int, int] = (0, 1),
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        if not 0 <= shard[0] < shard[1]:
            raise TrainingError(f"shard {shard[0]} of {shard[1]}: the first is 0, the last {shard[1] - 1}")
        self.folder, self.description = Path(folder), description
        self.limit_bytes, self.shard_bytes = limit_bytes, shard_bytes
        self.added = 0  # documents that are on disk now and were not before
        self.left_out = 0  # documents that the bound kept out
        self._name = f"features-{shard[0]:05d}-of-{shard[1]:05d}"
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = self._used = 0
        self.folder.mkdir(parents=True, exist_ok=True)
        self._own = FileLock(self.folder / f"{self._name}.lock")
        self._all = FileLock(self.folder / "features.lock")

    def __enter__(self) -> FeatureWriter:
        try:
            self._own.acquire(timeout=0)
        except Timeout:
            raise TrainingError(
                f"another process is writing {self._name} in {self.folder}; wait for it, or give each process a "
                "shard of its own"
            ) from None
        try:
            with self._all:
                self._claim()
            for left in self.folder.glob(f"{self._name}-*.partial"):
                left.unlink()
            cache = FeatureCache(self.folder)
        except BaseException:
            self._own.release()
            raise
        self.cache, self._used = cache, cache.bytes
        taken = [int(path.stem.rpartition("-")[2]) for path in self.folder.glob(f"{self._name}-*.safetensors")]
        self._number = max(taken, default=-1) + 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not isinstance(error, TrainingError):
                self.flush()
        finally:
            self._own.release()

    def __contains__(self, key: object) -> bool:
        return key in self._pending or key in self.cache

    def add(self, document_id: str, ids: Tensor | Sequence[int], taps: Tensor, final: Tensor | None = None) -> bool:
        """Take a document's features; one that is held already is not written again.

        Args:
            document_id: the document's id.
            ids: all its tokens [S].
            taps: [S - 1, L * width] of the description's layers, ascending; without the last one where it is ``final``.
            final: [S - 1, width], the state after the target's final norm.

        Returns:
            Whether the cache holds the document; False when the bound keeps it out.

        Raises:
            TrainingError: the disk is full, or the shapes are not those of the description.
        """
        key = document_key(ids)
        if key in self:
            return True
        planes = self._planes(document_id, len(ids) - 1, taps, final)
        if not self.has_room(len(ids)):
            self.left_out += 1
            return False
        self._pending[key] = planes
        self._pending_bytes += self.description.document_bytes(len(ids))
        if self._pending_bytes >= self.shard_bytes:
            self.flush()
        return True

    def has_room(self, tokens: int) -> bool:
        """Whether the bound lets in another document of so many tokens."""
        return self._used + self._pending_bytes + self.description.document_bytes(tokens) <= self.limit_bytes

    def leave_out(self, ids: Sequence[int]) -> None:
        """Count a document with these tokens as kept out by the bound, unless it is held."""
        self.left_out += document_key(ids) not in self

    def flush(self) -> None:
        """Write what is pending as a shard.

        Raises:
            TrainingError: the disk is full or cannot be written; earlier shards are whole.
        """
        if not self._pending:
            return
        pending, size = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = {}, 0
        partial = self.folder / f"{self._name}-{self._number:05d}.partial"
        try:
            save_file(pending, partial, metadata={"schema": SCHEMA})
            with partial.open("rb+") as written:
                os.fsync(written.fileno())
            kept = self._into_place(partial)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise TrainingError(
                f"cannot write a shard of {size / 1e6:,.0f} MB to {self.folder} ({error}); {len(self.cache):,} "
                f"documents of before and {self.added:,} new ones are safe there. Free some disk, or give a lower "
                "bound, and start again: it goes on from there"
            ) from error
        if kept:
            self.added += len(pending)
            self._number += 1
        else:  # another process was quicker
            self.left_out += len(pending)

    def _into_place(self, partial: Path) -> bool:
        """Rename the shard unless the bound is reached: processes look at it one after another."""
        size = partial.stat().st_size
        with self._all:
            self._used = bytes_on_disk(self.folder)
            if self._used + size > self.limit_bytes:
                partial.unlink()
                return False
            os.replace(partial, partial.with_suffix(".safetensors"))
            self._used += size
        return True

    def _claim(self) -> None:
        if not FeatureCache.is_in(self.folder):
            self.description.write(self.folder)
            return
        found, ours = CacheDescription.read(self.folder), self.description
        for name, text in (("target_fingerprint", "target"), ("layer_ids", "layers"), ("width", "width")):
            theirs, mine = getattr(found, name), getattr(ours, name)
            if theirs != mine:
                raise TrainingError(
                    f"{self.folder} holds features of another {text}: {found.target} with {name} {theirs}, now "
                    f"{ours.target} with {mine}; choose another folder"
                )

    def _planes(self, document_id: str, rows: int, taps: Tensor, final: Tensor | None) -> Tensor:
        """[layers, S - 1, width] in bfloat16 on the CPU."""
        layers, width = len(self.description.layer_ids), self.description.width
        joined = taps if final is None else torch.cat([taps, final.to(taps.device)], dim=-1)
        if joined.shape != (rows, layers * width):
            raise TrainingError(
                f"document {document_id}: features of shape {tuple(joined.shape)}, the cache {self.folder} takes "
                f"{layers} layers {width} wide of {rows} tokens: {(rows, layers * width)}"
            )
        by_layer = joined.unflatten(-1, (layers, width)).transpose(0, 1)
        return by_layer.to("cpu", torch.bfloat16).contiguous()
