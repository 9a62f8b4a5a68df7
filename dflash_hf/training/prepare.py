"""Everything a run needs before its first step: documents, the drafter it starts from, and where features come from.

What is left out, what the features cost and which way was chosen are told before work starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import warn
from dflash_hf.target.fingerprint import weights_fingerprint
from dflash_hf.target.pairing import check_pair
from dflash_hf.target.view import TargetView
from dflash_hf.training.checkpoint import drafter_of, read_state
from dflash_hf.training.documents import Document, fingerprint
from dflash_hf.training.features.cache import Cached, FeatureCache
from dflash_hf.training.features.features import FeatureSource, OnTheFly
from dflash_hf.training.features.fill import fill
from dflash_hf.training.features.plan import FeaturePlan, plan
from dflash_hf.training.features.writer import free_bytes
from dflash_hf.training.gather import Gathered, gather, times_read
from dflash_hf.training.heads import head_parameters
from dflash_hf.training.log import RunLog
from dflash_hf.training.optimizers import refuse_missing_optimizer
from dflash_hf.training.processes import same_for_all
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.reduced_vocabulary import covered
from dflash_hf.training.run import Start
from dflash_hf.training.schedule import total_steps
from dflash_hf.training.start import starting_drafter
from dflash_hf.training.visibility import form_for

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
        TrainingError: answers, recipe, target, machine and the state in the output folder do not go together: told
            before the target runs. Or the disk is full.
    """
    form_for(recipe.mask_form, accelerator.device)
    head_parameters(view)
    refuse_missing_optimizer(recipe)
    gathered = gather(view, recipe, say)
    state = read_state(Path(recipe.output), recipe, _target(view), fingerprint(gathered.corpus.training))
    if state is None:
        drafter = starting_drafter(view, recipe, gathered.corpus.training)
    else:
        drafter = drafter_of(state, recipe.target_name)
        check_pair(view.model, drafter)
    if accelerator.is_main_process:
        RunLog(Path(recipe.output), 0 if state is None else state.step)
    used, mask = gathered.used(recipe), drafter.config.mask_token_id
    if times := times_read(used, mask):
        warn(f"the mask token {mask} occurs {times:,} times in the documents; choose one that the text never has")
    if drafter.config.reduced_vocabulary:
        share = covered(gathered.corpus.training, drafter.vocabulary)
        say(f"the reduced head says {share:.1%} of the answers' tokens")
    features = _features(view, recipe, drafter, used, gathered, accelerator, say)
    return Start(gathered.corpus, features, drafter, _target(view), state, gathered.evaluation, gathered.origin)


def _target(view: TargetView) -> tuple[str, str]:
    return view.public_name, weights_fingerprint(view.model)


def _features(
    view: TargetView,
    recipe: Recipe,
    drafter: DFlashDrafter,
    documents: list[Document],
    gathered: Gathered,
    accelerator: Accelerator,
    say: Say,
) -> FeatureSource:
    layers, final = list(drafter.config.target_layer_ids), recipe.loss != "ce"
    online = OnTheFly(view, layers, final=final)
    folder = Path(recipe.feature_cache or Path(recipe.answers[0]) / "features")
    planned = _plan(view, recipe, documents, len(gathered.corpus.training), layers, folder)
    for line in planned.lines():
        say(line)
    if same_for_all(accelerator, planned.mode) == "online":
        return online
    limit, share = int(recipe.feature_cache_gb * 1e9), (accelerator.process_index, accelerator.num_processes)
    report = fill(view, documents, folder, layers, final=final, limit_bytes=limit, shard=share, progress=_told(say))
    accelerator.wait_for_everyone()
    for line in report.lines():
        say(line)
    return Cached(folder, layers, final=final, fallback=online, device=accelerator.device)


def _plan(
    view: TargetView, recipe: Recipe, documents: list[Document], count: int, layers: list[int], folder: Path
) -> FeaturePlan:
    steps = total_steps(count, recipe.documents_per_step, steps=recipe.steps, epochs=recipe.epochs)
    return plan(
        documents,
        view,
        layers,
        final=recipe.loss != "ce",
        mode=recipe.features,
        limit_bytes=int(recipe.feature_cache_gb * 1e9),
        free_bytes=free_bytes(folder),
        epochs=math.ceil(steps * recipe.documents_per_step / count),
        cached_already=FeatureCache(folder) if recipe.features != "online" and FeatureCache.is_in(folder) else None,
    )


def _told(say: Say) -> Callable[[int, int], None]:
    """Tells every tenth of the way."""
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if (tenth := 10 * done // max(total, 1)) > told:
            told = tenth
            say(f"features: {done:,} of {total:,} tokens")

    return progress
