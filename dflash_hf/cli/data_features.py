"""``dflash-hf data features``: the features of answers into a cache, so that epochs need no target."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_hf.cli.command import TargetOptions, command, emit_json, note
from dflash_hf.cli.numbers import layer_numbers, shard_numbers
from dflash_hf.cli.stopping import stoppable
from dflash_hf.cli.target import load_target
from dflash_hf.errors import TrainingError
from dflash_hf.training.figures import spell

if TYPE_CHECKING:
    from dflash_hf.target.view import TargetView
    from dflash_hf.training.documents import Document
    from dflash_hf.training.features.plan import FeaturePlan

__all__ = ["features", "register"]

_NOTE_SECONDS = 10.0  # between two lines of progress


def register(group: typer.Typer) -> None:
    command(group, "features")(features)


def features(
    answers: Annotated[list[Path], typer.Argument(help="Folders of answers (dflash-hf data regenerate).")],
    layers: Annotated[str, typer.Option(help="Target layers to tap, 0-based, with commas.")],
    final: Annotated[
        bool, typer.Option("--final", help="Also the state that the target's head reads, for KL losses.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Of the cache. Default: a folder named features in the first of ANSWERS.")
    ] = None,
    limit_gb: Annotated[
        float, typer.Option(min=0.0, help="Most gigabytes of the cache; the rest is computed on the fly.")
    ] = 20.0,
    max_length: Annotated[int, typer.Option(min=4, help="As in the recipe: longer documents are cut.")] = 2048,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Which of how many processes this is, from 0. Default: RANK.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a forward, padding included.")] = 8192,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it costs and stop.")] = False,
    *,
    target: TargetOptions,
    as_json: bool,
) -> None:
    """Run the target once over its answers and keep what its tapped layers put out.

    The same command goes on where a killed run was. What the cache costs is said before work starts.
    """
    layer_ids, part = layer_numbers("--layers", layers), shard_numbers(shard)
    from dflash_hf.training.features.fill import fill
    from dflash_hf.training.gather import refuse_other_target

    documents = _documents(answers, max_length)
    place, limit = folder or answers[0] / "features", int(limit_gb * 1e9)
    view = load_target(target)
    refuse_other_target(answers, view)
    planned = _plan(documents, view, layer_ids, final, place, limit, batch_tokens)
    for line in planned.lines():
        note(line)
    if dry_run:
        if as_json:
            emit_json("features", {"folder": str(place), "plan": asdict(planned)})
        return
    with stoppable("what was written is whole, and the same command goes on from there"):
        report = fill(
            view,
            documents,
            place,
            layer_ids,
            final=final,
            limit_bytes=limit,
            shard=part,
            batch_tokens=batch_tokens,
            progress=_progress(),
        )
    if as_json:
        emit_json("features", {"folder": str(place), "plan": asdict(planned), **asdict(report)})
    else:
        typer.echo("\n".join(f"{place}: {line}" for line in report.lines()))


def _documents(answers: list[Path], max_length: int) -> list[Document]:
    from dflash_hf.training.answers.answers import read_folders
    from dflash_hf.training.documents import documents_of

    found, _ = read_folders(answers)
    documents = documents_of(found, max_length=max_length)
    if unusable := len(found) - len(documents):
        note(f"{unusable} answers are too short to train on, or their prompts too long, and are left out")
    if not documents:
        raise TrainingError(f"none of the {len(found)} answers in {', '.join(map(str, answers))} can be trained on")
    return documents


def _plan(
    documents: list[Document],
    view: TargetView,
    layer_ids: list[int],
    final: bool,
    place: Path,
    limit: int,
    batch_tokens: int,
) -> FeaturePlan:
    from dflash_hf.training.features.cache import FeatureCache
    from dflash_hf.training.features.plan import plan
    from dflash_hf.training.features.writer import free_bytes

    return plan(
        documents,
        view,
        layer_ids,
        final=final,
        mode="cached",
        limit_bytes=limit,
        free_bytes=free_bytes(place),
        cached_already=FeatureCache(place) if FeatureCache.is_in(place) else None,
        batch_tokens=batch_tokens,
    )


def _progress() -> Callable[[int, int], None]:
    """A line now and then: tokens done, tokens per second, time left."""
    started = said = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said < _NOTE_SECONDS and done < total:
            return
        said = now
        speed = done / max(now - started, 1e-9)
        note(f"{done:,} of {total:,} tokens, {speed:,.0f} tokens/s, {spell((total - done) / speed)} left")

    return progress
