"""From the pair options to loaded, attached models."""

from __future__ import annotations

from dataclasses import asdict

from dflash_hf.bench.pair import Pair, PairSource
from dflash_hf.cli.command import PairOptions, note
from dflash_hf.cli.quiet import quiet_transformers

__all__ = ["load", "source_of"]


def source_of(options: PairOptions) -> PairSource:
    """The options as a source.

    Raises:
        OptionsError: the options contradict each other.
    """
    return PairSource(**asdict(options))


def load(options: PairOptions) -> Pair:
    """Load, check and attach the pair.

    Raises:
        OptionsError: the options contradict each other.
        DFlashError: a model cannot be had, or the two do not fit.
    """
    source = source_of(options)
    import transformers  # noqa: F401 - silenced as soon as it is there, before anything is dequantised or loaded

    quiet_transformers()
    return source.load(note)
