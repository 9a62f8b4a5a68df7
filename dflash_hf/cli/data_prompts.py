"""``dflash-hf data prompts``: what the target is asked, from files, data sets, transcripts or the target itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_hf.cli.command import TargetOptions, command, emit_json, note
from dflash_hf.cli.target import load_target, load_tokenizer
from dflash_hf.errors import OptionsError

if TYPE_CHECKING:
    from dflash_hf.training.prompts.collecting import Collection, Wanted
    from dflash_hf.training.prompts.filters import Limits, Screen
    from dflash_hf.training.prompts.selfwritten import Writing
    from dflash_hf.training.prompts.sources import Source

__all__ = ["prompts", "register"]

_TARGET, _FILTERS = "The target as the writer", "What is kept"


class Turns(StrEnum):
    first = "first"
    all = "all"


def register(group: typer.Typer) -> None:
    command(group, "prompts")(prompts)


def prompts(
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="The file to write.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...",
            help="JSON-lines files (.gz too), FILE[#FIELD], with question, prompt, turns, messages or conversations; "
            "or data sets, hf:owner/name[/config][:split][#column].",
        ),
    ] = None,
    turns: Annotated[
        Turns, typer.Option(help="Of a transcript: only the first user turn, or all, each with the turns before it.")
    ] = Turns.first,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many prompts, drawn with --seed.")] = None,
    seed: Annotated[int, typer.Option(help="Of the order, and of what the target writes.")] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Replace OUT.jsonl, and an unfinished run made with other options.")
    ] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="Evaluation prompts, as SOURCE; prompts with the same words or a run of 13 words of them are dropped.",
            rich_help_panel=_FILTERS,
        ),
    ] = None,
    min_chars: Annotated[int, typer.Option(min=1, help="Of the last user turn.", rich_help_panel=_FILTERS)] = 1,
    max_chars: Annotated[
        int | None, typer.Option(min=1, help="Of all turns together.", rich_help_panel=_FILTERS)
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option(min=1, help="In the target's chat template.", rich_help_panel=_FILTERS)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="In the target's chat template.", rich_help_panel=_FILTERS)
    ] = None,
    near_duplicates: Annotated[
        float,
        typer.Option(help="Share of common word 5-grams that makes a duplicate; 2: none.", rich_help_panel=_FILTERS),
    ] = 0.7,
    from_target: Annotated[
        int, typer.Option(min=0, help="So many prompts written by the target itself.", rich_help_panel=_TARGET)
    ] = 0,
    opening: Annotated[
        list[str] | None,
        typer.Option(
            help="Text that requests begin with; repeatable, dealt out in turn. '' leaves it to the target.",
            rich_help_panel=_TARGET,
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of the requests.", rich_help_panel=_TARGET)] = 1.0,
    top_p: Annotated[float, typer.Option(help="Of the requests.", rich_help_panel=_TARGET)] = 0.95,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="A request not finished by then is dropped.", rich_help_panel=_TARGET)
    ] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests at once.", rich_help_panel=_TARGET)] = 64,
    *,
    target: TargetOptions,
    as_json: bool,
) -> None:
    """Collect prompts into one file: deduplicated, filtered, free of evaluation prompts, shuffled.

    The same command goes on where a killed run was.
    """
    from dflash_hf.training.prompts.collecting import collect
    from dflash_hf.training.prompts.filters import Limits
    from dflash_hf.training.prompts.prompts import write_prompts
    from dflash_hf.training.prompts.selfwritten import Writing
    from dflash_hf.training.prompts.sources import Source

    given = [Source(text, turns is Turns.all, limit, seed) for text in sources or []]
    unseen = [Source(text) for text in exclude or []]
    limits = Limits(min_chars, max_chars, min_tokens, max_tokens, near_duplicates)
    writing = Writing(
        seed, temperature, top_p, max_new_tokens, tuple(opening or [""]), min(batch_size, from_target or 1)
    )
    _refuse(out, given, unseen, from_target, bool(opening), force)
    screen = _screen(limits, unseen, target)
    wanted = _wanted(out, writing, from_target, target, force) if from_target else None
    progress = _progress(from_target)
    collection = collect(given, screen, wanted, seed=seed, limit=limit, progress=progress)
    write_prompts(out, collection.prompts)
    if wanted is not None and wanted.log is not None:
        wanted.log.remove()
    _show(out, collection, as_json)


def _refuse(
    out: Path, sources: list[Source], unseen: list[Source], from_target: int, openings: bool, force: bool
) -> None:
    """What can be told before anything is read or loaded."""
    if not sources and not from_target:
        raise OptionsError(
            "nothing to take prompts from: name a SOURCE, or let the target write some with --from-target N"
        )
    if openings and not from_target:
        raise OptionsError("--opening is for requests that the target writes: it needs --from-target N")
    if out.is_dir():
        raise OptionsError(f"{out} is a folder; name a file")
    if out.exists() and not force:
        raise OptionsError(f"{out} exists; name another file, or replace it with --force")
    for source in [*sources, *unseen]:
        source.check()
    out.parent.mkdir(parents=True, exist_ok=True)


def _screen(limits: Limits, unseen: list[Source], target: TargetOptions) -> Screen:
    from dflash_hf.training.prompts.chat import chat_template, prompt_ids
    from dflash_hf.training.prompts.filters import Screen
    from dflash_hf.training.prompts.overlap import HeldOut
    from dflash_hf.training.prompts.sources import evaluation_texts

    held_out = HeldOut(text for source in unseen for text in evaluation_texts(source))
    if unseen:
        note(f"{len(held_out)} evaluation prompts stay unseen")
    if not limits.counts_tokens:
        return Screen(limits, held_out)
    tokenizer = load_tokenizer(target)
    chat_template(tokenizer)  # without one every prompt would be refused
    return Screen(limits, held_out, lambda prompt: len(prompt_ids(tokenizer, prompt.messages)))


def _wanted(out: Path, writing: Writing, count: int, target: TargetOptions, force: bool) -> Wanted:
    from dflash_hf.training.answers.answering import answer_batch
    from dflash_hf.training.prompts.chat import chat_template
    from dflash_hf.training.prompts.collecting import Wanted
    from dflash_hf.training.prompts.request_log import RequestLog
    from dflash_hf.training.prompts.selfwritten import Writer

    tokenizer = load_tokenizer(target)
    chat_template(tokenizer)  # said before the model is loaded
    writer = Writer(load_target(target), tokenizer, writing, answer_batch)
    log = RequestLog(out.with_name(out.name + ".partial"), writer.description(), anew=force)
    if done := log.read():
        note(f"{len(done)} requests were written before; going on from there")
    return Wanted(writer, count, log)


def _progress(count: int) -> Callable[[int, int], None]:
    every = max(1, count // 20)
    return lambda kept, written: (
        note(f"{kept} of {count} requests kept, {written} written") if not kept % every else None
    )


def _show(out: Path, collection: Collection, as_json: bool) -> None:
    dropped = dict(collection.dropped.most_common())
    if as_json:
        body = {"file": str(out), "sha256": sha256(out.read_bytes()).hexdigest(), "prompts": len(collection.prompts)}
        sources = [asdict(tally) for tally in collection.tallies]
        emit_json("prompts", {**body, "sources": sources, "dropped": dropped, "over_limit": collection.over_limit})
        return
    width = max([len("source"), *(len(tally.source) for tally in collection.tallies)])
    typer.echo(f"{'source':{width}}  {'rows':>8}  {'prompts':>8}  {'kept':>8}")
    for tally in collection.tallies:
        typer.echo(f"{tally.source:{width}}  {tally.rows:8}  {tally.prompts:8}  {tally.kept:8}")
    reasons = [*dropped.items(), *([("over the limit", collection.over_limit)] if collection.over_limit else [])]
    for reason, count in reasons:
        typer.echo(f"dropped: {count} {reason}")
    typer.echo(f"{out}: {len(collection.prompts)} prompts")
