"""Training documents on disk: what the target answered, and what its tapped layers put out on the way.

A folder holds shards ``*.safetensors``; document ``n`` is three tensors: ``n.ids`` [S] prompt and answer,
``n.prompt`` [] how many of them are the prompt, ``n.taps`` [S - 1, L * width] of every token but the last, which
the target never ran. ``answers.json`` beside them names the target, the tapped layers and how the answers were made.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from dflash_hf.errors import TrainingError

__all__ = ["Document", "Documents"]

DESCRIPTION = "answers.json"


@dataclass(frozen=True, slots=True)
class Document:
    """One prompt with its answer. ``taps`` are float32 and in the drafter's layer order."""

    ids: Tensor  # [S]
    prompt_length: int
    taps: Tensor  # [S - 1, L * width]


class Documents:
    """The documents of a folder, split once and for all into training and held-out ones by their number.

    Args:
        folder: written by ``training.regenerate``.
        layer_ids: tapped layers the drafter reads; the folder may hold more.
        held_out: every this-many-th document is kept for evaluation.

    Raises:
        TrainingError: no shards, or the folder lacks a layer.
    """

    def __init__(self, folder: str | Path, layer_ids: list[int], held_out: int = 50) -> None:
        self.folder = Path(folder)
        self._shards = sorted(self.folder.glob("*.safetensors"))
        if not self._shards:
            raise TrainingError(
                f"{folder} holds no answers (*.safetensors); make some with `dflash-hf data regenerate`"
            )
        self.description: dict[str, Any] = json.loads((self.folder / DESCRIPTION).read_text(encoding="utf-8"))
        stored = self.description["layer_ids"]
        if missing := [layer for layer in layer_ids if layer not in stored]:
            raise TrainingError(f"{folder} has taps of layers {stored}, the drafter also reads {missing}")
        width = self.description["tap_width"]
        self._columns = torch.cat([torch.arange(width) + stored.index(layer) * width for layer in layer_ids])
        self._index = [
            (shard, name.removesuffix(".ids"))
            for shard in self._shards
            for name in sorted(safe_open(shard, "pt").keys())
            if name.endswith(".ids")
        ]
        self.training = [entry for entry in self._index if int(entry[1]) % held_out]
        self.evaluation = [entry for entry in self._index if not int(entry[1]) % held_out]

    def shuffled(self, epoch: int, seed: int) -> Iterator[Document]:
        """All training documents in an order that depends on epoch and seed alone."""
        order = list(self.training)
        random.Random(f"{seed}-{epoch}").shuffle(order)
        return (self._load(*entry) for entry in order)

    def held_out(self, count: int) -> list[Document]:
        return [self._load(*entry) for entry in self.evaluation[:count]]

    def vocabulary(self) -> Tensor:
        """All token ids that occur [n], ascending."""
        seen: set[int] = set()
        for shard, name in self._index:
            with safe_open(shard, "pt") as file:
                seen.update(file.get_tensor(f"{name}.ids").tolist())
        return torch.tensor(sorted(seen))

    def _load(self, shard: Path, name: str) -> Document:
        with safe_open(shard, "pt") as file:
            ids, taps = file.get_tensor(f"{name}.ids"), file.get_tensor(f"{name}.taps")
            prompt = int(file.get_tensor(f"{name}.prompt"))
        return Document(ids, prompt, taps[: len(ids) - 1, self._columns].float())
