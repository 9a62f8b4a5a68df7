"""The documents of a run and of its evaluation sets, from answers folders that belong to this target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dflash_hf.errors import TrainingError, warn
from dflash_hf.target.fingerprint import weights_fingerprint
from dflash_hf.target.view import TargetView
from dflash_hf.training.answers.answers import AnswerFolder, read_folders
from dflash_hf.training.documents import Corpus, Document, corpus_of, documents_of, mixed, prompt_of
from dflash_hf.training.origin import Origin, origin_of
from dflash_hf.training.recipe import Recipe

__all__ = ["Gathered", "gather", "refuse_other_target", "thinking_mode", "times_read"]

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What is trained on, and what is looked at."""

    corpus: Corpus
    evaluation: dict[str, list[Document]]  # further sets, at most the recipe's number of documents each
    origin: Origin | None = None  # of a run that starts from another drafter

    def used(self, recipe: Recipe) -> list[Document]:
        """All documents whose features a run reads."""
        sets = [self.corpus.held_out[: recipe.evaluation_documents], *self.evaluation.values()]
        return [*self.corpus.training, *(document for documents in sets for document in documents)]


def gather(view: TargetView, recipe: Recipe, say: Say) -> Gathered:
    """Read the recipe's answers; what is left out, and why, is told to ``say``.

    Raises:
        TrainingError: a folder cannot be read or holds answers of another target, nothing is left to train on, or
            nothing of an evaluation set.
    """
    refuse_other_target([*recipe.answers, *recipe.evaluation.values()], view)
    answers, twice = read_folders(recipe.answers)
    if twice:
        say(f"{twice:,} answers left out: another folder has them too")
    corpus = corpus_of(answers, max_length=recipe.max_length, held_out=recipe.held_out)
    for reason, count in corpus.left_out.items():
        say(f"{count:,} answers left out: {reason}")
    if corpus.cut:
        say(f"{corpus.cut:,} documents cut at max_length={recipe.max_length}")
    origin = origin_of(recipe)
    if origin is not None:
        corpus = _without_seen(corpus, origin, say)
    said = f"{len(corpus.training):,} documents with {corpus.answer_tokens:,} answer tokens to train on"
    say(f"{said}, {len(corpus.held_out):,} held out")
    trained_on = {prompt_of(document) for document in corpus.training} | (origin.prompts if origin else frozenset())
    evaluation = {
        name: _evaluation(name, folder, trained_on, recipe, say) for name, folder in recipe.evaluation.items()
    }
    if not corpus.held_out and not evaluation:
        say("nothing to evaluate on: no τ will be given (held_out, or evaluation: name: folder)")
    if thinking_mode([AnswerFolder(folder).description for folder in recipe.answers]) == "mixed":
        say("the answers were made in different thinking modes: expect the drafter to be middling in each")
    if origin is not None:
        origin = origin.comparing([*(["held_out"] if corpus.held_out else []), *evaluation], recipe.held_out)
        _tell_uncompared(origin, recipe, say)
    return Gathered(corpus, evaluation, origin)


def thinking_mode(descriptions: list[dict[str, Any]]) -> bool | str | None:
    """The mode all answers were made in; None is the template's own, "mixed" is several."""
    modes = {description.get("chat", {}).get("thinking") for description in descriptions}
    return modes.pop() if len(modes) == 1 else "mixed"


def _without_seen(corpus: Corpus, origin: Origin, say: Say) -> Corpus:
    unseen = origin.unseen(corpus.held_out)
    if seen := len(corpus.held_out) - len(unseen):
        say(f"{seen:,} held-out answers are left out: {origin.name} was trained on their prompts")
    return replace(corpus, held_out=unseen)


def _tell_uncompared(origin: Origin, recipe: Recipe, say: Say) -> None:
    if "held_out" in origin.uncompared and origin.held_out:
        earlier = ", ".join(map(str, origin.held_out))
        warn(
            f"{origin.name} was trained with held_out={earlier}, this run has held_out={recipe.held_out}: τ on "
            "held-out answers may be of prompts that it was trained on. Set held_out to a multiple of the earlier "
            "number (0 held none out), or leave its answers where they were, so that prompts can be compared"
        )
    if origin.uncompared:
        say(f"not known: whether {origin.name} was trained on prompts of {', '.join(origin.uncompared)}")


def _evaluation(name: str, folder: str, trained_on: Collection[bytes], recipe: Recipe, say: Say) -> list[Document]:
    answers = AnswerFolder(folder).read()
    documents = documents_of(answers, max_length=recipe.max_length)
    unseen = [document for document in documents if prompt_of(document) not in trained_on]
    if seen := len(documents) - len(unseen):
        say(f"evaluation set {name}: {seen:,} of {len(documents):,} answers left out, their prompts are trained on")
    if unusable := len(answers) - len(documents):
        say(f"evaluation set {name}: {unusable:,} of {len(answers):,} answers left out, too short or too long")
    if not unseen:
        raise TrainingError(
            f"evaluation set {name} ({folder}): none of its {len(answers):,} answers can be used: their prompts are "
            "trained on, or they are too short or too long"
        )
    return mixed(unseen)[: recipe.evaluation_documents]


def refuse_other_target(folders: Sequence[str | Path], view: TargetView) -> None:
    """Raises TrainingError when a folder holds answers of another target."""
    ours = weights_fingerprint(view.model)
    for folder in folders:
        description = AnswerFolder(folder).description
        if (theirs := description.get("weights")) != ours:
            raise TrainingError(
                f"{folder} holds answers of {description.get('target')} (weights {theirs}), this target is "
                f"{view.public_name} (weights {ours}); a drafter learns what its own target says. Name the other with "
                "--target, or make answers with this one"
            )


def times_read(documents: list[Document], token: int) -> int:
    """How often a token occurs in the documents."""
    return sum(int(torch.count_nonzero(document.ids == token)) for document in documents)
