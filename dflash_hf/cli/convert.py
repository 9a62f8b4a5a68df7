"""``dflash-hf convert``: a drafter's files in another layout."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dflash_hf.cli.command import TargetOptions, command, emit_json
from dflash_hf.cli.quiet import quiet_transformers
from dflash_hf.cli.target import load_target

__all__ = ["register"]


class Layout(StrEnum):
    """What can be written."""

    zlab = "zlab"
    host = "host"
    speculators = "speculators"


def register(app: typer.Typer) -> None:
    command(app, "convert")(convert)


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Drafter of any readable dialect: folder or Hub id.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="Folder to write.")],
    to: Annotated[
        Layout,
        typer.Option(
            help="zlab: read by vLLM, SGLang and z-lab's code. host: transformers' own DFlash class. speculators: "
            "vLLM's library of drafters."
        ),
    ] = Layout.zlab,
    target_name: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="The drafter's target: checked to fit. With it speculators' files get the embedding they need, and "
            "host's are checked for its scale.",
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of SRC on the Hub.")] = None,
    local_files_only: Annotated[bool, typer.Option("--local-files-only", help="Never ask the Hub.")] = False,
    *,
    as_json: bool,
) -> None:
    """Read a drafter and write it in another layout; refused where the layout cannot say what the drafter does."""
    from dflash_hf.checkpoints.convert import convert as convert_files

    quiet_transformers()
    model = None
    if target_name is not None:
        options = TargetOptions(target=target_name, device_map="cpu", local_files_only=local_files_only)
        model = load_target(options).model
    convert_files(source, destination, to=to.value, target=model, revision=revision, local_files_only=local_files_only)
    written = ["README.md", "config.json", "model.safetensors"]
    if as_json:
        emit_json("convert", {"source": source, "destination": str(destination), "to": to.value, "files": written})
    else:
        typer.echo(f"{source} -> {destination} ({to.value}): {', '.join(written)}")
