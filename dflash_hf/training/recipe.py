"""A training recipe: every number of a run in one frozen record, read from YAML with ``key=value`` overrides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dflash_hf.errors import TrainingError

__all__ = ["Recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What ``training.run`` needs to know. Sizes that are the target's own are not repeated here."""

    documents: str  # folder of answers with taps (training.regenerate)
    output: str  # folder for the drafter and the run's state
    target_layer_ids: tuple[int, ...]
    target_name: str = ""  # how the card calls the target; empty: as it was loaded
    num_hidden_layers: int = 2
    block_size: int = 8
    mask_token_id: int = 0
    causal: bool = True  # in-block mask; a causal block can be cut short without changing its earlier slots
    warm_layers: tuple[int, ...] = ()  # target layers whose weights the drafter's layers start from; empty: random
    train_slots: int = 5  # slots trained in most blocks
    full_block_every: int = 4  # every this-many-th document trains whole blocks
    anchors_per_document: int = 0  # drawn afresh each time a document comes up; 0 means all
    blocks_per_row: int = 16
    documents_per_step: int = 8
    steps: int = 1000
    learning_rate: float = 6e-4
    warmup: float = 0.04  # share of the steps
    weight_decay: float = 0.0
    clip: float = 1.0
    gamma: float = 4.0
    head_sample: int = 2048  # tokens outside the corpus drawn into each step's head
    seed: int = 0
    evaluate_every: int = 100
    evaluation_documents: int = 20
    save_minutes: float = 5.0
    threads: int = 1

    def __post_init__(self) -> None:
        if not 2 <= self.train_slots <= self.block_size:
            raise TrainingError(
                f"train_slots must be between 2 and block_size={self.block_size}, got {self.train_slots}"
            )
        if self.train_slots < self.block_size and not self.causal:
            raise TrainingError(
                "a bidirectional block changes when it is cut short: set train_slots to block_size, or causal to true"
            )
        if self.warm_layers and len(self.warm_layers) != self.num_hidden_layers:
            raise TrainingError(
                f"warm_layers names {len(self.warm_layers)} layers, the drafter has {self.num_hidden_layers}"
            )

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """A recipe from a YAML file; ``overrides`` are ``key=value`` with YAML values.

        Raises:
            TrainingError: the file cannot be read, or a key is unknown, missing or of the wrong kind.
        """
        import yaml

        try:
            values: dict[str, Any] = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
            for override in overrides:
                key, separator, value = override.partition("=")
                if not separator:
                    raise TrainingError(f"override {override!r} is not key=value")
                values[key] = yaml.safe_load(value)
        except (OSError, yaml.YAMLError) as error:
            raise TrainingError(f"cannot read the recipe {path}: {error}") from error
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise TrainingError(f"the recipe {path} has no key {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        lists: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        try:
            return cls(**lists)
        except TypeError as error:
            raise TrainingError(f"the recipe {path} is incomplete: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
