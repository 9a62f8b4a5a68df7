"""``dflash-hf data regenerate``: the target answers prompts; what a drafter is trained on."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_hf.cli.command import TargetOptions, command, emit_json, note
from dflash_hf.cli.numbers import layer_numbers, shard_numbers
from dflash_hf.cli.stopping import stoppable
from dflash_hf.cli.target import load_target, load_tokenizer
from dflash_hf.training.figures import size, spell

if TYPE_CHECKING:
    from dflash_hf.target.view import TargetView
    from dflash_hf.training.answers.jobs import AnswerPlan
    from dflash_hf.training.answers.regenerate import AnswerProgress, AnswerReport
    from dflash_hf.training.features.writer import FeatureWriter

__all__ = ["register"]

_NOTE_SECONDS = 10.0  # between two lines of progress, where no terminal shows a bar


def register(group: typer.Typer) -> None:
    command(group, "regenerate")(regenerate)


def regenerate(
    prompts: Annotated[Path, typer.Argument(help="JSON lines, as `data prompts` writes them.")],
    folder: Annotated[Path, typer.Argument(help="Where the answers go; the same command goes on with it.")],
    temperature: Annotated[
        list[float] | None, typer.Option(min=0.0, help="0 is greedy, the default. Several are dealt to the prompts.")
    ] = None,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus of the draws.")] = 1.0,
    answers_per_prompt: Annotated[int, typer.Option(min=1, help="How often each prompt is answered.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the deal, the draws and the order.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Where an answer is cut.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Answers made at once; the more, the faster.")] = 64,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Which of how many processes this is, from 0. Default: RANK.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many prompts.")] = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest prompt. Default: what leaves room for the answer.")
    ] = None,
    skip_long: Annotated[bool, typer.Option("--skip-long", help="Leave out prompts that are too long.")] = False,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="The chat template's switch, where it has one.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="LAYERS", help="Keep what these layers put out: saves a second pass."),
    ] = None,
    final: Annotated[
        bool, typer.Option("--final", help="With --features: also the final state, for KL losses.")
    ] = False,
    features_folder: Annotated[
        Path | None,
        typer.Option(help="With --features: where; several answers folders may share one. Default: FOLDER/features."),
    ] = None,
    features_gb: Annotated[float, typer.Option(min=0.0, help="With --features: most gigabytes.")] = 20.0,
    *,
    target: TargetOptions,
    as_json: bool,
) -> None:
    """Let the target answer prompts, in batches of like length.

    Broken off at any moment, the same command goes on where it was. Several processes share the work: --shard 0/2 and
    --shard 1/2 on one folder, or one command under torchrun.
    """
    part, tapped = shard_numbers(shard), layer_numbers("--features", features) if features else []
    _refuse_without_features(tapped, final, features_folder)
    from dflash_hf.training.answers.jobs import AnswerSettings
    from dflash_hf.training.answers.regenerate import regenerate as answer_prompts
    from dflash_hf.training.prompts.prompts import read_prompts

    settings = AnswerSettings(
        temperatures=tuple(temperature or (0.0,)),
        top_p=top_p,
        answers_per_prompt=answers_per_prompt,
        seed=seed,
        max_new_tokens=max_new_tokens,
        max_prompt_tokens=max_prompt_tokens,
        skip_long=skip_long,
        thinking=thinking,
        batch_size=batch_size,
    )
    asked = read_prompts(prompts)[:limit]
    tokenizer, view = load_tokenizer(target), load_target(target)
    cache = features_folder or folder / "features"
    kept = _writer(view, cache, tapped, final, features_gb, part) if tapped else nullcontext()
    going_on = f"finished batches are safe in {folder}, and the same command goes on from there"
    with stoppable(going_on), _progress() as progress, kept as writer:
        report = answer_prompts(
            view,
            tokenizer,
            asked,
            folder,
            settings,
            prompts_sha256=hashlib.sha256(prompts.read_bytes()).hexdigest(),
            shard=part,
            features=writer,
            on_plan=lambda plan: _announce(plan, part, writer),
            progress=progress,
        )
    _show(folder, report, writer, as_json)


def _refuse_without_features(tapped: list[int], final: bool, folder: Path | None) -> None:
    given = [name for name, said in (("--final", final), ("--features-folder", folder is not None)) if said]
    if given and not tapped:
        raise typer.BadParameter(f"{' and '.join(given)} only with --features LAYERS")


def _writer(
    view: TargetView, folder: Path, layers: list[int], final: bool, gigabytes: float, shard: tuple[int, int]
) -> FeatureWriter:
    from dflash_hf.training.features.cache import CacheDescription
    from dflash_hf.training.features.writer import FeatureWriter

    description = CacheDescription.of(view, layers, final)
    return FeatureWriter(folder, description, limit_bytes=int(gigabytes * 1e9), shard=shard)


def _announce(plan: AnswerPlan, shard: tuple[int, int], writer: FeatureWriter | None) -> None:
    skipped = f", {plan.skipped} too long and left out" if plan.skipped else ""
    note(f"{plan.prompts} prompts of {plan.prompt_tokens} tokens{skipped}")
    which = f"shard {shard[0]} of {shard[1]}: " if shard[1] > 1 else ""
    note(f"{which}{plan.answers} answers, {plan.done} done already, {plan.left} to make in {len(plan.batches)} batches")
    if writer is not None:
        token, limit = writer.description.token_bytes, writer.limit_bytes
        note(
            f"features of layers {', '.join(map(str, writer.description.layer_ids))}: {token:,} bytes a token, at most "
            f"{size(limit)} in {writer.folder}, {size(writer.cache.bytes)} of them taken: room for "
            f"{max(0, limit - writer.cache.bytes) // token:,} tokens"
        )


@contextmanager
def _progress() -> Iterator[Callable[[AnswerProgress], None]]:
    """A bar on a terminal, else a line now and then; on stderr."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda state: bar.update(
                task, completed=state.done, total=state.total, description=_line(state), refresh=True
            )
        return
    said = 0.0

    def say(state: AnswerProgress) -> None:
        nonlocal said
        if state.seconds - said >= _NOTE_SECONDS or state.done == state.total:
            said = state.seconds
            note(_line(state))

    yield say


def _line(state: AnswerProgress) -> str:
    speed = state.tokens / max(state.seconds, 1e-9)
    return f"{state.done} of {state.total} answers, {speed:.0f} tokens/s, {spell(state.left_seconds)} left"


def _show(folder: Path, report: AnswerReport, writer: FeatureWriter | None, as_json: bool) -> None:
    from dataclasses import asdict

    kept = {} if writer is None else {"kept": writer.added, "left_out": writer.left_out}
    if as_json:
        emit_json("regenerate", {"folder": str(folder), **asdict(report), **({"features": kept} if kept else {})})
        return
    empty = f", {report.empty} of them empty" if report.empty else ""
    typer.echo(
        f"{folder}: {report.answers} answers of {report.tokens} tokens made in {report.seconds:.0f} s; "
        f"{report.ended} ended{empty}, {report.cut} cut; {report.done_before} were there before"
    )
    if writer is not None:
        beyond = (
            f"; {kept['left_out']:,} are beyond the bound and will be computed on the fly" if writer.left_out else ""
        )
        typer.echo(f"{writer.folder}: features of {kept['kept']:,} answers kept{beyond}")
