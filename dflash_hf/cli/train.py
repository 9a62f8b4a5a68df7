"""``dflash-hf train``: a drafter by a recipe, from answers made with ``dflash-hf data regenerate``."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_hf.cli.command import INTERRUPTED, TargetOptions, command, emit_json, note
from dflash_hf.cli.stopping import stoppable
from dflash_hf.cli.target import load_target
from dflash_hf.training.figures import spell

if TYPE_CHECKING:
    from dflash_hf.training.recipe import Recipe
    from dflash_hf.training.run import Progress

__all__ = ["register"]

_NOTE_SECONDS = 10.0


def register(app: typer.Typer) -> None:
    command(app, "train")(train)


def train(
    recipe: Annotated[Path, typer.Argument(help="YAML file; see recipes/ and docs/training.md.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Over the file.")] = None,
    *,
    target: TargetOptions,
    as_json: bool,
) -> None:
    """Train a drafter; stop it and start it again with the same line, it goes on where it was.

    Under torchrun or accelerate launch, several processes share the work.
    """
    import torch

    from dflash_hf.training.answers.answers import AnswerFolder
    from dflash_hf.training.prepare import prepare
    from dflash_hf.training.processes import join
    from dflash_hf.training.publish import publish
    from dflash_hf.training.recipe import Recipe
    from dflash_hf.training.run import Trainer

    settings = Recipe.read(recipe, overrides or [])
    accelerator = join(settings.precision, settings.documents_per_step)
    say: Callable[[str], None] = note if accelerator.is_main_process else _silent
    view = load_target(target)
    torch.set_num_threads(target.threads or settings.threads)
    with stoppable("nothing was trained yet; the same command goes on from there"):
        start = prepare(view, settings, accelerator, say)
    trainer = Trainer(view, settings, start)
    count = f", {accelerator.num_processes} processes" if accelerator.num_processes > 1 else ""
    say(f"step {trainer.step} of {trainer.steps}{count}; {trainer.output}")
    trainer.train(_progress(say))
    if not trainer.finished:
        say(f"stopped at step {trainer.step}, saved in {trainer.output}; the same command goes on from there")
        raise typer.Exit(INTERRUPTED)
    if accelerator.is_main_process:
        made = [AnswerFolder(folder).description for folder in settings.answers]
        typed = _typed(recipe, settings, overrides or [], target)
        provenance = publish(trainer, trainer.output / "drafter", answers=made, command=typed)
        _show(trainer.output / "drafter", provenance, as_json)


def _typed(recipe: Path, settings: Recipe, overrides: list[str], target: TargetOptions) -> str:
    """What a person types to do it again: no folders of this machine, and nothing that touches neither a weight nor τ.

    Answers and evaluation sets are named by the last part of their folders, as in the provenance's recipe.
    """
    from dflash_hf.target.view import public_name
    from dflash_hf.training.checkpoint import FREE_TO_CHANGE

    named = {
        "answers": _flow([Path(folder).name for folder in settings.answers]),
        "evaluation": _flow({name: Path(folder).name for name, folder in settings.evaluation.items()}),
    }
    measured = {*named, "evaluation_documents"}
    given = {key: value for key, _, value in (override.partition("=") for override in overrides)}
    said = {key: named.get(key) or public_name(value) for key, value in given.items()}
    decisive = [f"{key}={value}" for key, value in said.items() if key in measured or key not in FREE_TO_CHANGE]
    options = [] if target.target is None else ["--target", public_name(target.target)]
    options += [] if target.dtype == "auto" else ["--dtype", target.dtype]
    options += [] if target.quantization is None else ["--quantization", target.quantization]
    return shlex.join(["dflash-hf", "train", recipe.name, *decisive, *options])


def _flow(value: Any) -> str:
    """YAML on one line."""
    import yaml

    return str(
        yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    ).strip()


def _silent(_line: str) -> None: ...


def _progress(say: Callable[[str], None]) -> Callable[[Progress], None]:
    """A line now and then: step, loss since the line before, tokens per second, time left."""
    said, losses = time.monotonic(), list[float]()

    def progress(state: Progress) -> None:
        nonlocal said
        losses.append(state.loss)
        if time.monotonic() - said < _NOTE_SECONDS and state.step < state.steps:
            return
        said, mean = time.monotonic(), sum(losses) / len(losses)
        losses.clear()
        say(
            f"step {state.step} of {state.steps}, loss {mean:.3f}, {state.tokens_per_second:,.0f} tokens/s, "
            f"{spell(state.seconds_left)} left"
        )
        sys.stderr.flush()

    return progress


def _show(folder: Path, provenance: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit_json("train", provenance)
        return
    for name, row in provenance["evaluation"].items():
        shares = " ".join(f"{share:.2f}" for share in row["accepted_by_position"])
        typer.echo(f"{name}: tau {row['tau']:.2f} (simulated, {row['documents']} answers); accepted by slot {shares}")
    typer.echo(f"{folder}")
