"""``dflash-hf train``: a drafter by a recipe, from answers made with ``dflash-hf data regenerate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_hf.cli.command import command, emit_json, note
from dflash_hf.cli.quiet import quiet_transformers

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    command(app, "train")(train)


def train(
    recipe: Annotated[Path, typer.Argument(help="YAML file; see recipes/.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Over the file.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Folder or Hub id of the target. Default: the embedded SmolLM2-135M-Instruct.")
    ] = None,
    *,
    as_json: bool,
) -> None:
    """Train on the CPU, in float32; stop it and start it again with the same line, it goes on where it was."""
    import torch
    from transformers import AutoModelForCausalLM

    from dflash_hf.pretrained.smollm2 import embedded_target_folder
    from dflash_hf.target.view import view_target
    from dflash_hf.training.publish import publish
    from dflash_hf.training.recipe import Recipe
    from dflash_hf.training.run import Trainer

    settings = Recipe.read(recipe, overrides or [])
    quiet_transformers()
    torch.set_num_threads(settings.threads)
    folder = target or str(embedded_target_folder())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    trainer = Trainer(view_target(model), settings)
    note(f"{len(trainer.documents.training)} documents, step {trainer.step} of {settings.steps}; {trainer.output}")
    trainer.train()
    if trainer.step < settings.steps:
        note(f"stopped at step {trainer.step}; the same command goes on from there")
        raise typer.Exit(1)
    provenance = publish(trainer, trainer.output / "drafter")
    if as_json:
        emit_json("train", provenance)
    else:
        held_out = provenance["held_out"]
        typer.echo(f"{trainer.output / 'drafter'}: tau {held_out['tau_simulated']:.2f} on held-out answers (simulated)")
