"""Features on disk, read: memory-mapped shards that hold the features of some documents.

A folder holds ``features.json`` (whose target, which layers) and ``features-<shard>-of-<shards>-<number>.safetensors``.
A document is one tensor, bfloat16 [layers, S - 1, width], the layers ascending, so that each is one stretch of the file
and only the layers asked for are read. Its name is a hash of the document's tokens, all that its features depend on:
whatever a folder calls it, its features are found, and a changed answer never meets old ones. Older caches put the
document's id and a # before a shorter hash; those names are read too. The final state is the tap of the last layer
(``target.taps``). ``training.features.writer`` makes them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dflash_hf.errors import TrainingError
from dflash_hf.target.fingerprint import weights_fingerprint
from dflash_hf.target.view import TargetView
from dflash_hf.training.documents import Document
from dflash_hf.training.features.features import Features, FeatureSource, OnTheFly, recorded_layers

__all__ = ["CacheDescription", "Cached", "FeatureCache", "bytes_on_disk", "document_key"]

SCHEMA = "dflash-hf/features/1"
DESCRIPTION = "features.json"
SHARDS = "features-*.safetensors"
_OPEN_SHARDS = 64
_DIGITS, _SHORT = 32, 12  # of the hash in a name, and in older ones
_ENTRY_BYTES = 256


def document_key(ids: Tensor | Sequence[int]) -> str:
    """The name of the tensor of a document with these tokens.

    >>> document_key([1, 2, 3])
    'e2e2033ae7e19d680599d4eb0a1359a2'
    """
    tokens = torch.as_tensor(ids, dtype=torch.int64).cpu().numpy().astype("<i8").tobytes()
    return hashlib.sha256(tokens).hexdigest()[:_DIGITS]


def bytes_on_disk(folder: str | Path) -> int:
    """Bytes of the finished shards of a cache."""
    return sum(path.stat().st_size for path in Path(folder).glob(SHARDS))


@dataclass(frozen=True, slots=True)
class CacheDescription:
    """What all shards of a folder have in common; ``features.json``."""

    target: str  # public name
    target_fingerprint: str
    num_layers: int  # of the target
    layer_ids: tuple[int, ...]  # ascending; the last layer's is the final state
    width: int
    dtype: str = "bfloat16"

    @classmethod
    def of(cls, view: TargetView, layer_ids: Sequence[int], final: bool) -> CacheDescription:
        """What a cache of this target and these layers says.

        Raises:
            TrainingError: the target lacks a layer.
        """
        layers = tuple(sorted(set(recorded_layers(view, layer_ids, final))))
        return cls(view.public_name, weights_fingerprint(view.model), view.num_layers, layers, view.hidden_size)

    @classmethod
    def read(cls, folder: Path) -> CacheDescription:
        """The description of a folder.

        Raises:
            TrainingError: there is none, or it is not one this version reads.
        """
        path = folder / DESCRIPTION
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if (schema := data.pop("schema")) != SCHEMA:
                raise TrainingError(f"{path} has schema {schema!r}, this version reads {SCHEMA!r}")
            return cls(**{**data, "layer_ids": tuple(data["layer_ids"])})
        except FileNotFoundError:
            raise TrainingError(f"{folder} is no feature cache; fill one with `dflash-hf data features`") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TrainingError(f"cannot read {path}: {type(error).__name__}: {error}") from error

    def write(self, folder: Path) -> None:
        """Whole or not at all."""
        partial = folder / f"{DESCRIPTION}.{os.getpid()}.partial"
        partial.write_text(json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, folder / DESCRIPTION)

    def refuse_target(self, view: TargetView, folder: Path) -> None:
        """Raises TrainingError when the cache was made by another target."""
        if (fingerprint := weights_fingerprint(view.model)) != self.target_fingerprint:
            raise TrainingError(
                f"{folder} holds features of {self.target} (weights {self.target_fingerprint}), this target is "
                f"{view.public_name} (weights {fingerprint}); choose another folder"
            )

    def refuse_layers(self, layer_ids: Sequence[int], final: bool, folder: Path) -> None:
        """Raises TrainingError when the cache lacks what is asked for."""
        wanted = {*layer_ids, *([self.num_layers - 1] if final else [])}
        if missing := sorted(wanted - set(self.layer_ids)):
            raise TrainingError(
                f"{folder} holds features of layers {_listed(self.layer_ids)}; layers {_listed(sorted(wanted))} are "
                f"asked for{' (the last for the final state)' if final else ''}, {_listed(missing)} are missing. "
                "Take layers that it has, or fill another folder"
            )

    @property
    def token_bytes(self) -> int:
        """Of the features of a token."""
        return 2 * len(self.layer_ids) * self.width

    def document_bytes(self, tokens: int) -> int:
        """What a document of so many tokens takes at most: its features and its entry in the shard's header."""
        return self.token_bytes * max(tokens - 1, 0) + _ENTRY_BYTES


class FeatureCache:
    """The finished shards of a folder, as they are now; shards that appear later are not seen.

    Raises:
        TrainingError: the folder is no feature cache, or a shard is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.description = CacheDescription.read(self.folder)
        self.bytes = bytes_on_disk(self.folder)
        self._held: dict[str, tuple[Path, str]] = {}  # key, or an older one's short hash -> shard, name in it
        for path in sorted(self.folder.glob(SHARDS)):
            names = _open(path).keys()
            self._held.update({name.rpartition("#")[2]: (path, name) for name in names})
        self._file = lru_cache(maxsize=_OPEN_SHARDS)(_open)

    @staticmethod
    def is_in(folder: str | Path) -> bool:
        """Whether the folder is a cache, be it an empty one."""
        return (Path(folder) / DESCRIPTION).exists()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._found(key) is not None

    def __len__(self) -> int:
        return len(self._held)

    def read(self, key: str, layer_ids: Sequence[int]) -> list[Tensor]:
        """Features [S - 1, width] of each layer: views of the mapped file, read from disk when they are touched."""
        found = self._found(key)
        if found is None:
            raise KeyError(key)
        path, name = found
        stored = self._file(path).get_slice(name)
        return [stored[self.description.layer_ids.index(layer)] for layer in layer_ids]

    def _found(self, key: str) -> tuple[Path, str] | None:
        return self._held.get(key) or self._held.get(key[:_SHORT])


class Cached:
    """Features from a cache, of documents it does not hold from ``fallback``.

    Args:
        folder: of the cache; it may hold more layers than are asked for.
        layer_ids: tapped layers, in the drafter's order.
        final: whether the final state is wanted too.
        fallback: asked for the documents that a bounded cache left out.
        device: where all features go.

    Raises:
        TrainingError: no cache, one of another target, or one that lacks a layer.
    """

    def __init__(
        self,
        folder: str | Path,
        layer_ids: Sequence[int],
        *,
        final: bool = False,
        fallback: FeatureSource,
        device: torch.device | str = "cpu",
    ) -> None:
        self.cache = FeatureCache(folder)
        description = self.cache.description
        description.refuse_layers(layer_ids, final, self.cache.folder)
        if isinstance(fallback, OnTheFly):
            description.refuse_target(fallback.view, self.cache.folder)
        self.fallback, self.device = fallback, torch.device(device)
        self._layers = list(layer_ids)
        self._final = [description.num_layers - 1] if final else []

    def of(self, documents: Sequence[Document]) -> list[Features]:
        """bfloat16 where the cache has the document, else as the fallback gives it."""
        keys = [document_key(document.ids) for document in documents]
        absent = [document for document, key in zip(documents, keys, strict=True) if key not in self.cache]
        computed = iter(self.fallback.of(absent) if absent else [])
        return [self._read(key) if key in self.cache else self._moved(next(computed)) for key in keys]

    def _read(self, key: str) -> Features:
        layers = self.cache.read(key, self._layers + self._final)
        final = layers.pop() if self._final else None
        return self._moved(Features(torch.cat(layers, dim=-1), final))

    def _moved(self, features: Features) -> Features:
        final = features.final
        return Features(features.taps.to(self.device), None if final is None else final.to(self.device))


def _open(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"{path} is damaged ({error}); delete it and fill the cache again") from error


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
