"""The documents of a run and of its evaluation sets, from answers folders that belong to this target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dflash_hf.errors import TrainingError
from dflash_hf.target.fingerprint import weights_fingerprint
from dflash_hf.target.view import TargetView
from dflash_hf.training.answers.answers import AnswerFolder, read_folders
from dflash_hf.training.documents import Corpus, Document, corpus_of, documents_of, prompt_of
from dflash_hf.training.recipe import Recipe

__all__ = ["Gathered", "gather", "thinking_mode", "times_read"]

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What is trained on, and what is looked at."""

    corpus: Corpus
    evaluation: dict[str, list[Document]]  # further sets, at most the recipe's number of documents each

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
    for folder in [*recipe.answers, *recipe.evaluation.values()]:
        _refuse_other_target(AnswerFolder(folder), view)
    answers, twice = read_folders(recipe.answers)
    if twice:
        say(f"{twice:,} answers left out: another folder has them too")
    corpus = corpus_of(answers, max_length=recipe.max_length, held_out=recipe.held_out)
    for reason, count in corpus.left_out.items():
        say(f"{count:,} answers left out: {reason}")
    if corpus.cut:
        say(f"{corpus.cut:,} documents cut at max_length={recipe.max_length}")
    said = f"{len(corpus.training):,} documents with {corpus.answer_tokens:,} answer tokens to train on"
    say(f"{said}, {len(corpus.held_out):,} held out")
    evaluation = {name: _evaluation(name, folder, corpus, recipe, say) for name, folder in recipe.evaluation.items()}
    if not corpus.held_out and not evaluation:
        say("nothing to evaluate on: no τ will be given (held_out, or evaluation: name: folder)")
    if thinking_mode([AnswerFolder(folder).description for folder in recipe.answers]) == "mixed":
        say("the answers were made in different thinking modes: expect the drafter to be middling in each")
    return Gathered(corpus, evaluation)


def thinking_mode(descriptions: list[dict[str, Any]]) -> bool | str | None:
    """The mode all answers were made in; None is the template's own, "mixed" is several."""
    modes = {description.get("chat", {}).get("thinking") for description in descriptions}
    return modes.pop() if len(modes) == 1 else "mixed"


def _evaluation(name: str, folder: str, corpus: Corpus, recipe: Recipe, say: Say) -> list[Document]:
    answers = AnswerFolder(folder).read()
    documents = documents_of(answers, max_length=recipe.max_length)
    trained_on = {prompt_of(document) for document in corpus.training}
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
    return unseen[: recipe.evaluation_documents]


def _refuse_other_target(folder: AnswerFolder, view: TargetView) -> None:
    description = folder.description
    theirs, ours = description.get("weights"), weights_fingerprint(view.model)
    if theirs != ours:
        raise TrainingError(
            f"{folder.path} holds answers of {description.get('target')} (weights {theirs}), this target is "
            f"{view.public_name} (weights {ours}); a drafter learns what its own target says. Name the other with "
            "--target, or make answers with this one"
        )


def times_read(documents: list[Document], token: int) -> int:
    """How often a token occurs in the documents."""
    return sum(int(torch.count_nonzero(document.ids == token)) for document in documents)
