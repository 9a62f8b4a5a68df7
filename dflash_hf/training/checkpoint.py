"""The state of a run on disk: written whole or not at all, and read back only by the run it belongs to.

``state.pt`` holds the recipe, the hash of the corpus, the drafter's description and float32 weights, the optimisers'
state, and how far the run is. Data order, anchors and samples are functions of the seed and the step, so nothing else
is needed to go on as if nothing had happened.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import TrainingError
from dflash_hf.training.recipe import Recipe

__all__ = ["RunState", "drafter_of", "drafter_of_run", "holds_run", "read_state", "run_of", "write_state"]

STATE = "state.pt"
# What a resumed run may change: none of it touches a weight.
FREE_TO_CHANGE = frozenset(
    {
        "answers",  # the documents themselves are compared
        "output",
        "mask_form",
        "blocks_per_row",
        "evaluation",
        "features",
        "feature_cache",
        "feature_cache_gb",
        "target_name",
        "threads",
        "save_minutes",
        "evaluate_every",
        "evaluation_documents",
    }
)


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run stands. ``seconds`` and ``tokens`` count from its first step, over all its sessions."""

    recipe: dict[str, Any]
    target: tuple[str, str]  # public name and weights_fingerprint
    corpus: str  # documents.fingerprint
    config: dict[str, Any]
    drafter: dict[str, torch.Tensor]
    optimizers: list[dict[str, Any]]
    step: int
    seconds: float
    tokens: int


def write_state(folder: Path, state: RunState) -> None:
    """Replace the folder's state.

    Raises:
        TrainingError: it could not be written; the state before it is untouched.
    """
    path = folder / STATE
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            torch.save({name: getattr(state, name) for name in RunState.__slots__}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        partial.unlink(missing_ok=True)
        kept = "the state saved before it is kept" if path.exists() else "no state was saved before it"
        raise TrainingError(f"step {state.step} could not be saved to {path} ({error}); {kept}") from error


def read_state(folder: Path, recipe: Recipe, target: tuple[str, str], corpus: str) -> RunState | None:
    """The state to go on from; None where the folder has none.

    Raises:
        TrainingError: it belongs to a run with another recipe, target or documents, or cannot be read.
    """
    if not holds_run(folder):
        return None
    state = _load(folder)
    told = recipe.model_dump(mode="json")
    changed = [
        f"{key} ({state.recipe.get(key)} then, {value} now)"
        for key, value in told.items()
        if key not in FREE_TO_CHANGE and state.recipe.get(key) != value
    ]
    if state.target[1] != target[1]:
        changed.append(f"the target ({state.target[0]} then, {target[0]} now, or other weights of it)")
    if state.corpus != corpus:
        changed.append("the answers (other documents, or another number of them)")
    if changed:
        raise TrainingError(
            f"{folder / STATE} is at step {state.step} of a run with other values for {', '.join(changed)}. Finish "
            f"it as it began, or start another from its weights: output=ANOTHER_FOLDER start_from={folder}"
        )
    return state


def holds_run(folder: Path) -> bool:
    return (folder / STATE).is_file()


def drafter_of(state: RunState, target_name: str = "") -> DFlashDrafter:
    """The drafter of a state, in float32; ``target_name`` is what its card will call the target from now on."""
    drafter = DFlashDrafter(DFlashConfig(**state.config))
    drafter.load_state_dict(state.drafter)
    drafter.config.target_name = target_name or drafter.config.target_name
    return drafter.float()


def drafter_of_run(folder: Path) -> DFlashDrafter:
    """The drafter of a run's last saved state."""
    return drafter_of(_load(folder))


def run_of(folder: Path) -> tuple[dict[str, Any], str]:
    """The recipe of a run and the hash of its documents; its weights stay on the disk."""
    state = _load(folder, mmap=True)
    return state.recipe, state.corpus


def _load(folder: Path, *, mmap: bool = False) -> RunState:
    path = folder / STATE
    try:
        return RunState(**torch.load(path, weights_only=True, map_location="cpu", mmap=mmap))
    except Exception as error:  # torch raises many kinds for a file that is not a state, or not one of this release
        raise TrainingError(f"{path} cannot be read ({error}); remove it to begin anew") from error
