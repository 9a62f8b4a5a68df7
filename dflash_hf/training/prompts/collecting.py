"""From sources, a screen and perhaps the target as a writer to the prompts of one file.

Sources are read in the order given, the target writes last, so that of two alike prompts the one from a source is kept.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_hf.errors import TrainingError
from dflash_hf.training.prompts.filters import Screen
from dflash_hf.training.prompts.prompts import Prompt, distinct
from dflash_hf.training.prompts.request_log import RequestLog
from dflash_hf.training.prompts.selfwritten import Writer
from dflash_hf.training.prompts.sources import Source, Tally, source_prompts

__all__ = ["Collection", "Wanted", "collect"]

_PATIENCE = 20  # requests written for one that is kept, before it is given up
_START = 200  # further ones, so that a small run is not given up too soon


@dataclass(frozen=True, slots=True)
class Wanted:
    """Requests wanted of the target: ``count`` that pass the screen."""

    writer: Writer
    count: int
    log: RequestLog | None = None


@dataclass(frozen=True, slots=True)
class Collection:
    """Prompts in their final order, what each source gave, and why the others were dropped."""

    prompts: list[Prompt]
    tallies: list[Tally]
    dropped: Counter[str]
    over_limit: int = 0  # prompts that passed and were one too many


def collect(
    sources: Sequence[Source],
    screen: Screen,
    wanted: Wanted | None = None,
    *,
    seed: int = 0,
    limit: int | None = None,
    progress: Callable[[int, int], None] = lambda kept, written: None,
) -> Collection:
    """Prompts that pass the screen, in an order drawn with ``seed``; at most ``limit`` of them.

    Args:
        sources: of prompts that exist.
        screen: decides; its counts become the collection's.
        wanted: requests by the target.
        seed: of the order, and with ``limit`` of the choice.
        limit: most prompts.
        progress: called with the number of requests kept and written whenever one is kept.

    Raises:
        OptionsError: a source cannot be read.
        HubError: a data set cannot be had.
        TrainingError: nothing is left, or nearly all requests of the target are dropped.
    """
    kept: list[Prompt] = []
    tallies = [Tally(source.label) for source in sources]
    for source, tally in zip(sources, tallies, strict=True):
        for prompt in source_prompts(source, tally):
            if screen.admit(prompt):
                tally.kept += 1
                kept.append(prompt)
            if source.streams and tally.kept == source.wanted:
                break  # what is not read is not downloaded
    if wanted is not None:
        tallies.append(Tally("target"))
        kept += _requests(wanted, screen, tallies[-1], progress)
    if not kept:
        read = sum(tally.rows for tally in tallies)
        raise TrainingError(f"no prompt is left of {read} rows: {_reasons(screen.dropped)}")
    random.Random(seed).shuffle(kept)
    chosen = kept[:limit]
    return Collection(distinct(chosen), tallies, screen.dropped, len(kept) - len(chosen))


def _requests(wanted: Wanted, screen: Screen, tally: Tally, progress: Callable[[int, int], None]) -> list[Prompt]:
    kept: list[Prompt] = []
    for request in wanted.writer.requests(wanted.log):
        if len(kept) == wanted.count:
            break
        if tally.rows >= _PATIENCE * wanted.count + _START:
            raise TrainingError(
                f"of {tally.rows} requests the target wrote only {len(kept)} can be used, {wanted.count} are wanted "
                f"({_reasons(screen.dropped)}); loosen the filters, or try another opening, temperature or length"
            )
        tally.rows += 1
        if request.flaw:
            screen.dropped[request.flaw] += 1
            continue
        tally.prompts += 1
        prompt = wanted.writer.prompt(request)
        if screen.admit(prompt):
            tally.kept += 1
            kept.append(prompt)
            progress(len(kept), tally.rows)
    return kept


def _reasons(dropped: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.most_common()) or "the sources are empty"
