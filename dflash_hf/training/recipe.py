"""A training recipe: every choice of a run in one frozen record, read from YAML with ``key=value`` overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator, model_validator

from dflash_hf.errors import TrainingError

__all__ = ["Recipe"]


class Recipe(BaseModel):
    """What ``training.run`` needs to know. Sizes that are the target's own are not repeated here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Data: folders of answers (``training.regenerate``)
    answers: tuple[str, ...] = Field(min_length=1)
    output: str  # folder for the drafter, the run's state and its log
    evaluation: dict[str, str] = {}  # name -> answers folder; τ is reported for each
    held_out: int = Field(50, ge=0)  # about every so many-th prompt of `answers` is kept for evaluation; 0: none
    max_length: int = Field(2048, ge=4)  # tokens of a document; longer ones are cut
    features: Literal["auto", "cached", "online"] = "auto"  # the target's taps: from disk, or computed as needed
    feature_cache: str = ""  # folder; empty: `features` in the first answers folder
    feature_cache_gb: float = Field(20.0, ge=0)

    # The drafter. What is null comes from `start_from`, or from the target
    start_from: str = ""  # a drafter of any readable dialect, or a run's output folder
    warm_layers: tuple[int, ...] = ()  # target layers whose weights the layers of a new drafter start from
    target_name: str = ""  # how the card calls the target; empty: as it was loaded
    target_layer_ids: tuple[int, ...] | None = None
    num_hidden_layers: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    block_size: int | None = Field(None, ge=2)
    mask_token_id: int | None = Field(None, ge=0)
    first_slot: Literal[0, 1] | None = (
        None  # the slot that says the first token; null: 0 with a new Markov head, else 1
    )
    causal: bool | None = None  # in-block mask
    sliding_window: PositiveInt | None = None

    # Its head. What is null comes from `start_from`, or is not there
    draft_vocab_size: PositiveInt | None = None  # a head over the answers' most frequent tokens alone
    head: Literal["markov", "selector"] | None = None  # added to a drafter that has none
    markov_rank: PositiveInt | None = None  # null: 64
    selector_rank: PositiveInt | None = None  # null: 64
    selector_top_k: int | None = Field(None, ge=2)  # null: 16
    freeze: Literal["backbone"] | None = None  # train the head alone

    # Blocks
    anchors_per_document: int = Field(0, ge=0)  # drawn afresh each time a document comes up; 0 means all
    mask_form: Literal["auto", "flex", "dense", "chunked"] = "auto"
    blocks_per_row: PositiveInt = 16  # chunked: blocks that share a row
    train_slots: int | None = Field(None, ge=2)  # causal: most steps train only so many slots of a block
    whole_blocks_every: PositiveInt = 4  # and every so many-th trains all of them
    pack_tokens: int = Field(0, ge=0)  # documents side by side up to so many tokens; 0: one document at a time

    # Loss
    loss: Literal["ce", "kl", "hybrid"] = "ce"
    position_weights: Literal["exponential", "dpace"] = "exponential"
    gamma: float = Field(4.0, gt=0)
    dpace_alpha: float = Field(0.5, ge=0, le=1)
    head_sample: PositiveInt | None = None  # size of the head's sample of rows at each step; null: the full head
    feature_noise: float = Field(0.0, ge=0)  # standard deviation, relative to each tap's own

    # Optimisation
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = Field(6e-4, gt=0)
    muon_learning_rate: float | None = Field(None, gt=0)  # null: learning_rate
    weight_decay: float = Field(0.0, ge=0)
    warmup: float = Field(0.04, ge=0, lt=1)  # share of the steps
    clip: float = Field(1.0, gt=0)
    steps: PositiveInt | None = None
    epochs: float | None = Field(None, gt=0, allow_inf_nan=False)
    documents_per_step: PositiveInt = 8  # over all processes
    precision: Literal["float32", "bfloat16"] = "float32"  # of the products; weights and their updates are float32
    seed: int = 0

    # The run
    threads: PositiveInt = 1
    save_minutes: float = Field(10.0, ge=0)
    evaluate_every: PositiveInt = 100
    evaluation_documents: PositiveInt = 50  # at most, of each set

    @field_validator("answers", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("feature_cache", "start_from", "target_name", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return "" if value is None else value

    @model_validator(mode="after")
    def _agrees(self) -> Recipe:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        if self.start_from and self.warm_layers:
            raise ValueError("start_from and warm_layers are two different starts; give one of them")
        if self.warm_layers and self.num_hidden_layers not in (None, len(self.warm_layers)):
            raise ValueError(f"warm_layers names {len(self.warm_layers)} layers, num_hidden_layers is another number")
        if self.train_slots is not None and not self.causal:
            raise ValueError("train_slots needs causal: true; a bidirectional block changes when it is cut short")
        if self.train_slots is not None and self.block_size is not None and self.train_slots >= self.block_size:
            raise ValueError("train_slots must be smaller than block_size, or null")
        if self.draft_vocab_size is not None and self.head_sample is not None:
            raise ValueError("head_sample is for a head of all tokens; leave it out, or draft_vocab_size")
        for key in _OF_HEAD:
            if getattr(self, key) is not None and self.head != _OF_HEAD[key]:
                raise ValueError(f"{key} is for head: {_OF_HEAD[key]}")
        if self.muon_learning_rate is not None and self.optimizer != "muon":
            raise ValueError("muon_learning_rate is for optimizer: muon")
        if "held_out" in self.evaluation:
            raise ValueError("evaluation: held_out is the name of the held-out answers; call the set otherwise")
        taps = self.target_layer_ids
        if taps is not None and list(taps) != sorted(set(taps)):
            raise ValueError("target_layer_ids must ascend: vLLM and SGLang hand taps over in the target's order")
        return self

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """A recipe from a YAML file; ``overrides`` are ``key=value`` with YAML values.

        Raises:
            TrainingError: the file cannot be read, or a key is unknown, missing or of the wrong kind.
        """
        import yaml

        try:
            values: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
            if not isinstance(values, dict):
                raise TrainingError(f"{path} is no recipe: it must be a mapping, `key: value` a line")
            for override in overrides:
                key, separator, value = override.partition("=")
                if not separator:
                    raise TrainingError(f"override {override!r} is not key=value")
                values[key] = yaml.safe_load(value)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise TrainingError(f"cannot read the recipe {path}: {error}") from error
        return cls.of(values, str(path))

    @classmethod
    def of(cls, values: dict[str, Any], name: str = "recipe") -> Recipe:
        """A recipe from a mapping.

        Raises:
            TrainingError: a key is unknown, missing or of the wrong kind; all of them are named.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, fault['loc'])) or 'recipe'}: {_said(fault)}" for fault in error.errors()]
            raise TrainingError(f"{name}: " + "; ".join(faults)) from None

    def changed(self, **values: Any) -> Recipe:
        """This recipe with other values, checked as a whole."""
        return self.of({**self.model_dump(), **values})


_OF_HEAD = {"markov_rank": "markov", "selector_rank": "selector", "selector_top_k": "selector"}


def _said(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return f"no such key; known are {', '.join(Recipe.model_fields)}"
    return str(fault["msg"]).removeprefix("Value error, ")
