"""What the weights that a run starts from have seen: τ on prompts they were trained on would flatter the drafter.

A run's folder says which answers it trained on; where they still lie there, as they were, their prompts are known, and
nothing is measured on them. Of a drafter without its run nothing is known, and the card says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_hf.errors import TrainingError
from dflash_hf.target.view import public_name
from dflash_hf.training.answers.answers import read_folders
from dflash_hf.training.checkpoint import holds_run, run_of
from dflash_hf.training.documents import Document, corpus_of, fingerprint, prompt_of
from dflash_hf.training.recipe import Recipe

__all__ = ["Origin", "origin_of"]


@dataclass(frozen=True, slots=True)
class Origin:
    """A drafter to start from, and the runs it comes from, the last one first."""

    name: str  # without this machine's folders
    prompts: frozenset[bytes] = frozenset()  # trained on, as far as they could be read
    complete: bool = False  # whether these are all
    held_out: tuple[int, ...] = ()  # of its runs; () where not all of them are known
    uncompared: tuple[str, ...] = ()  # evaluation sets that may hold prompts it was trained on

    def unseen(self, documents: Sequence[Document]) -> list[Document]:
        """Those it was not trained on, as far as is known."""
        return [document for document in documents if prompt_of(document) not in self.prompts]

    def splits_like(self, held_out: int) -> bool:
        """Whether every prompt that such a run holds out was held out by all runs before it, whatever their answers."""
        return bool(self.held_out) and all(earlier and held_out % earlier == 0 for earlier in self.held_out)

    def comparing(self, sets: Sequence[str], held_out: int) -> Origin:
        """The same, with the names among ``sets`` that could not be compared."""
        unknown = [name for name in sets if not (self.complete or (name == "held_out" and self.splits_like(held_out)))]
        return replace(self, uncompared=tuple(unknown))


def origin_of(recipe: Recipe) -> Origin | None:
    """Where the recipe's run starts; None for a new drafter."""
    if not recipe.start_from:
        return None
    prompts: set[bytes] = set()
    held_out: list[int] = []
    complete, start, known = True, recipe.start_from, {Path(recipe.output).resolve()}
    while start:
        folder = _run_behind(Path(start))
        if folder is None or folder.resolve() in known:
            return Origin(public_name(recipe.start_from), frozenset(prompts))
        known.add(folder.resolve())
        told, corpus = run_of(folder)
        found = _prompts(told, corpus)
        complete = complete and found is not None
        prompts |= found or set()
        held_out.append(int(told.get("held_out", 0)))
        start = told.get("start_from", "")
    return Origin(public_name(recipe.start_from), frozenset(prompts), complete, tuple(held_out))


def _run_behind(folder: Path) -> Path | None:
    """The folder of the run that wrote this drafter; None where it wrote none, or is not here."""
    places = [folder, folder.parent] if folder.name == "drafter" else [folder]
    return next((place for place in places if holds_run(place)), None)


def _prompts(told: dict[str, Any], corpus: str) -> set[bytes] | None:
    """The prompts a run trained on; None where its answers are gone, or others by now."""
    try:
        earlier = Recipe.of(told)
        answers, _ = read_folders(earlier.answers)
        documents = corpus_of(answers, max_length=earlier.max_length, held_out=earlier.held_out).training
    except TrainingError:
        return None
    return {prompt_of(document) for document in documents} if fingerprint(documents) == corpus else None
