"""Everything a run needs before its first step: documents, the drafter it starts from, and where features come from.

What is left out, what the features cost and which way was chosen are told before work starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import TrainingError
from dflash_hf.target.view import TargetView
from dflash_hf.training.answers.answers import Answer, AnswerFolder
from dflash_hf.training.checkpoint import drafter_of, read_state
from dflash_hf.training.documents import Corpus, Document, corpus_of, documents_of, fingerprint
from dflash_hf.training.features.cache import Cached, FeatureCache
from dflash_hf.training.features.features import FeatureSource, OnTheFly
from dflash_hf.training.features.fill import fill
from dflash_hf.training.features.plan import plan
from dflash_hf.training.features.writer import free_bytes
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.run import Start
from dflash_hf.training.schedule import total_steps
from dflash_hf.training.start import starting_drafter

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["prepare"]

Say = Callable[[str], None]


def prepare(view: TargetView, recipe: Recipe, accelerator: Accelerator, say: Say) -> Start:
    """Read the answers, find the drafter and, where features are cached, fill the cache.

    Args:
        view: the target, on this process's device.
        recipe: what to do.
        accelerator: this process among its siblings (``processes.join``).
        say: tells a person a line.

    Raises:
        TrainingError: answers, recipe, target and the state in the output folder do not go together. All but a full
            disk is told before the target runs.
    """
    folders = [AnswerFolder(folder) for folder in recipe.answers]
    corpus = corpus_of(_unique(folders, say), max_length=recipe.max_length, held_out=recipe.held_out)
    for reason, count in corpus.left_out.items():
        say(f"{count:,} answers left out: {reason}")
    if corpus.cut:
        say(f"{corpus.cut:,} documents cut at max_length={recipe.max_length}")
    evaluation = {
        name: documents_of(AnswerFolder(folder).read(), max_length=recipe.max_length)
        for name, folder in recipe.evaluation.items()
    }
    say(
        f"{len(corpus.training):,} documents with {corpus.answer_tokens:,} answer tokens to train on, "
        f"{len(corpus.held_out):,} held out"
    )
    state = read_state(Path(recipe.output), recipe, fingerprint(corpus.training))
    drafter = starting_drafter(view, recipe) if state is None else drafter_of(state)
    used = [
        *corpus.training,
        *(document for documents in _looked_at(corpus, evaluation, recipe) for document in documents),
    ]
    features = _features(view, recipe, drafter, used, len(corpus.training), accelerator, say)
    return Start(corpus, features, drafter, state, evaluation)


def _unique(folders: Sequence[AnswerFolder], say: Say) -> list[Answer]:
    """The answers of all folders; one that an earlier folder has under the same id is left out."""
    found: dict[str, Answer] = {}
    twice = 0
    for folder in folders:
        for answer in folder.read():
            twice += answer.id in found
            found.setdefault(answer.id, answer)
    if twice:
        say(f"{twice:,} answers left out: an earlier folder has their ids")
    return list(found.values())


def _looked_at(corpus: Corpus, evaluation: dict[str, list[Document]], recipe: Recipe) -> list[list[Document]]:
    sets = [corpus.held_out, *evaluation.values()]
    return [documents[: recipe.evaluation_documents] for documents in sets]


def _features(
    view: TargetView,
    recipe: Recipe,
    drafter: DFlashDrafter,
    documents: list[Document],
    count: int,
    accelerator: Accelerator,
    say: Say,
) -> FeatureSource:
    layers, final = list(drafter.config.target_layer_ids), recipe.loss != "ce"
    if any(answer_layer >= view.num_layers for answer_layer in layers):
        raise TrainingError(f"taps {layers}: {view.public_name} has layers 0 to {view.num_layers - 1}")
    online = OnTheFly(view, layers, final=final)
    folder = Path(recipe.feature_cache or Path(recipe.answers[0]) / "features")
    limit = int(recipe.feature_cache_gb * 1e9)
    steps = total_steps(count, recipe.documents_per_step, steps=recipe.steps, epochs=recipe.epochs)
    planned = plan(
        documents,
        view,
        layers,
        final=final,
        mode=recipe.features,
        limit_bytes=limit,
        free_bytes=free_bytes(folder),
        epochs=math.ceil(steps * recipe.documents_per_step / count),
        cached_already=FeatureCache(folder) if FeatureCache.is_in(folder) else None,
    )
    for line in planned.lines():
        say(line)
    if planned.mode == "online":
        return online
    share = (accelerator.process_index, accelerator.num_processes)
    report = fill(view, documents, folder, layers, final=final, limit_bytes=limit, shard=share, progress=_told(say))
    accelerator.wait_for_everyone()
    for line in report.lines():
        say(line)
    return Cached(folder, layers, final=final, fallback=online, device=accelerator.device)


def _told(say: Say) -> Callable[[int, int], None]:
    """Tells every tenth of the way."""
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if (tenth := 10 * done // max(total, 1)) > told:
            told = tenth
            say(f"features: {done:,} of {total:,} tokens")

    return progress
