"""From the pair options to loaded, attached models."""

from __future__ import annotations

from dataclasses import asdict

import typer

from dflash_hf.bench.pair import DTYPES, Pair, PairSource
from dflash_hf.cli.command import PairOptions, note
from dflash_hf.cli.quiet import quiet_transformers

__all__ = ["load", "refuse_unknown_dtype", "source_of"]


def source_of(options: PairOptions) -> PairSource:
    """The options as a source.

    Raises:
        typer.BadParameter: the options contradict each other.
    """
    refuse_unknown_dtype(options.dtype)
    if options.target is not None and options.drafter is None:
        raise typer.BadParameter(
            "--target needs --drafter (auto takes the one published for it): the embedded drafter only drafts for the "
            "embedded target"
        )
    return PairSource(**asdict(options))


def load(options: PairOptions) -> Pair:
    """Load, check and attach the pair.

    Raises:
        typer.BadParameter: the options contradict each other.
        DFlashError: a model cannot be had, or the two do not fit.
    """
    source = source_of(options)
    import transformers  # noqa: F401 - silenced as soon as it is there, before anything is dequantised or loaded

    quiet_transformers()
    return source.load(note)


def refuse_unknown_dtype(name: str) -> None:
    if name not in DTYPES:
        raise typer.BadParameter(f"--dtype is one of {', '.join(DTYPES)}, not {name!r}")
