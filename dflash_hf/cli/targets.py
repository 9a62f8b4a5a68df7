"""``dflash-hf targets``: which architectures of the installed transformers are drafted for exactly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_hf.cli.command import CHECK_FAILED, command, emit_json, note
from dflash_hf.cli.lines import table

if TYPE_CHECKING:
    from dflash_hf.bench.targets.rows import Row

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    command(app, "targets")(targets)


def targets(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Model types (llama), or one class of them (llama4/Llama4ForCausalLM). Default: all there are, which "
            "takes minutes."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this Markdown file.")] = None,
    limit: Annotated[float, typer.Option(min=1.0, help="Most seconds an architecture may take.")] = 180.0,
    *,
    as_json: bool,
) -> None:
    """Decode a tiny random model of each architecture plain and drafted: exact, or refused with the reason."""
    from dflash_hf.bench.targets.must_pass import complaints
    from dflash_hf.bench.targets.names import chosen
    from dflash_hf.bench.targets.rows import counts
    from dflash_hf.bench.targets.survey import survey

    wanted = chosen(names or [])
    done: list[Row] = []

    def tell(row: Row) -> None:
        done.append(row)
        note(f"{len(done)}/{len(wanted)} {row.key}: {row.outcome}")

    rows = survey(wanted, tell, limit)
    wrong = complaints(rows, whole=not names)
    if out is not None:
        _write(out, rows)
    if as_json:
        body = {"transformers": _version(), "counts": counts(rows), "complaints": wrong}
        emit_json("targets", {**body, "rows": [row.to_dict() for row in rows]})
    else:
        table([(row.key, row.outcome, row.cache, row.state, row.why) for row in rows])
        typer.echo(f"transformers {_version()}: {', '.join(f'{n} {outcome}' for outcome, n in counts(rows).items())}")
        for line in wrong:
            typer.echo(f"FAILED: {line}")
    if wrong:
        raise typer.Exit(CHECK_FAILED)


def _write(out: Path, rows: list[Row]) -> None:
    from dflash_hf.bench.targets.examine import NEW
    from dflash_hf.bench.targets.page import page
    from dflash_hf.bench.targets.sizes import WINDOW

    out.write_text(page(rows, _version(), window=WINDOW, new=NEW), encoding="utf-8")


def _version() -> str:
    from importlib.metadata import version

    return version("transformers")
