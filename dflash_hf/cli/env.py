"""``dflash-hf env``: what a bug report needs."""

from __future__ import annotations

from typing import Any

import typer

from dflash_hf.cli.command import command, emit_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    command(app, "env")(env)


def env(*, as_json: bool) -> None:
    """Print versions, devices, the cache folder, and whether the embedded pair is there."""
    from dflash_hf.bench.provenance import describe_machine, versions
    from dflash_hf.pretrained.cache import cache_home

    body: dict[str, Any] = {
        "versions": versions(),
        "machine": describe_machine(),
        "cache": str(cache_home()),
        "embedded": _embedded(),
    }
    if as_json:
        emit_json("env", body)
        return
    for block in ("versions", "machine", "embedded"):
        for name, value in body[block].items():
            typer.echo(f"{name}: {value}")
    typer.echo(f"cache: {body['cache']}")


def _embedded() -> dict[str, str]:
    from dflash_hf.errors import DFlashError
    from dflash_hf.pretrained.smollm2 import embedded_drafter_folder, embedded_target_is_ready, embedded_target_name

    found = {}
    try:
        state = "ready" if embedded_target_is_ready() else "installed; made ready on first use"
        found["embedded target"] = f"{embedded_target_name()}: {state}"
    except DFlashError as error:
        found["embedded target"] = f"absent: {error}"
    try:
        found["embedded drafter"] = embedded_drafter_folder().name
    except DFlashError as error:
        found["embedded drafter"] = f"absent: {error}"
    return found
