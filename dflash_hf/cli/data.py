"""``dflash-hf data``: what a drafter is trained on, made by the target itself."""

from __future__ import annotations

import typer

from dflash_hf.cli import data_features, data_prompts, data_regenerate

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="What a drafter is trained on, made by the target itself.", no_args_is_help=True)
    group.callback()(lambda: None)
    data_prompts.register(group)
    data_regenerate.register(group)
    data_features.register(group)
    app.add_typer(group, name="data")
