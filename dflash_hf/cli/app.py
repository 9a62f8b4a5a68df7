"""The table of commands. Each module registers one; none imports torch or transformers before it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_hf.cli import bench, convert, data, demo, doctor, env, generate, inspect, targets, train, verify

__all__ = ["app"]

app = typer.Typer(
    name="dflash-hf",
    help="DFlash speculative decoding for Hugging Face transformers: the same text, in fewer steps of the model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from dflash_hf import __version__

        typer.echo(f"dflash-hf {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


for module in (generate, inspect, verify, doctor, convert, bench, targets, data, train, demo, env):
    module.register(app)
