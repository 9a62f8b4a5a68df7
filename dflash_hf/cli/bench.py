"""``dflash-hf bench``: interleaved paired runs on a file of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_hf.bench.answers import Sampling
from dflash_hf.bench.pair import Pair
from dflash_hf.cli.command import CHECK_FAILED, DraftWindow, PairOptions, command, note
from dflash_hf.cli.pair import load
from dflash_hf.options import DFlashOptions

if TYPE_CHECKING:
    from dflash_hf.bench.lanes import Lane
    from dflash_hf.bench.measure import Case, PromptResult
    from dflash_hf.bench.prompts import Prompt

__all__ = ["register"]

_LANES = ("host", "host-loop", "lookup")


def register(app: typer.Typer) -> None:
    command(app, "bench")(bench)


def bench(
    prompts: Annotated[Path, typer.Argument(help="JSON lines (.gz too) with question, prompt or turns.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many prompts.")] = None,
    group: Annotated[str | None, typer.Option(help="Only prompts of this category.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of each answer.")] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each lane on each prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the order of lanes and of the bootstrap.")] = 0,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Further lanes: host (transformers' own DFlash, the drafter converted), host-loop (its assisted loop "
            "with our drafting), lookup (prompt lookup)."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
    thinking: Annotated[
        bool | None, typer.Option(help="Thinking mode of the chat template. Default: the template's own choice.")
    ] = None,
    draft_window: DraftWindow = None,
    *,
    pair: PairOptions,
    as_json: bool,
) -> None:
    """Measure drafted against plain, greedily; every speed comes with its same-text count."""
    if unknown := sorted(set(also or ()) - set(_LANES)):
        raise typer.BadParameter(f"--also knows {', '.join(_LANES)}, not {', '.join(unknown)}")
    from dflash_hf.bench.prompts import load_prompts

    chosen = load_prompts(prompts, limit, group)
    loaded = load(pair)
    cases = _cases(loaded, chosen, raw, thinking)
    lanes = _lanes(loaded, Sampling(max_new_tokens), also or [], DFlashOptions(draft_window=draft_window))
    data = _measured(loaded, cases, lanes, max_new_tokens, repeats=repeats, seed=seed)
    data["settings"] |= {"prompts": prompts.name, "chat_template": not raw, "thinking": thinking}
    data["settings"] |= {"draft_window": draft_window}
    if out is not None:
        from dflash_hf.bench.report import write_report

        write_report(out, data)
    _show(data, as_json, loaded)
    if any(lane.get("same_text", {}).get("different") for lane in data["lanes"].values()):
        raise typer.Exit(CHECK_FAILED)


def _measured(
    pair: Pair, cases: list[Case], lanes: dict[str, Lane], max_new_tokens: int, *, repeats: int, seed: int
) -> dict[str, Any]:
    from dflash_hf.bench.judge import judge
    from dflash_hf.bench.measure import measure
    from dflash_hf.bench.provenance import provenance
    from dflash_hf.bench.report import report

    results = measure(
        lanes,
        cases,
        repeats=repeats,
        seed=seed,
        judge=lambda prompt, tokens: judge(pair.model, prompt, tokens),
        on_prompt=_progress,
    )
    settings = {"count": len(results), "max_new_tokens": max_new_tokens, "repeats": repeats, "temperature": 0}
    return report(results, provenance=provenance(pair.model, pair.names), settings=settings, seed=seed)


def _lanes(pair: Pair, sampling: Sampling, also: list[str], drafting: DFlashOptions) -> dict[str, Lane]:
    from dflash_hf.bench.lanes import convert_for_host, dflash_lane, host_lane, host_loop_lane, lookup_lane, plain_lane

    options = sampling.arguments()
    drafted = dflash_lane(pair.model, pair.drafter, dflash=drafting, **options)
    lanes = {"plain": plain_lane(pair.model, **options), "dflash": drafted}
    if "lookup" in also:
        lanes["lookup"] = lookup_lane(pair.model, **options)
    if "host-loop" in also:
        lanes["host-loop"] = host_loop_lane(pair.model, pair.drafter, **options)
    if "host" in also:
        lanes["host"] = host_lane(pair.model, convert_for_host(pair.drafter, pair.model), **options)
    return lanes


def _cases(pair: Pair, prompts: list[Prompt], raw: bool, thinking: bool | None) -> list[Case]:
    from dflash_hf.bench.measure import Case, to_device
    from dflash_hf.bench.prompts import encode

    def inputs(text: str) -> Any:
        return to_device(encode(pair.tokenizer, text, chat=not raw, thinking=thinking), pair.device)

    return [Case(prompt.name, inputs(prompt.text), prompt.group) for prompt in prompts]


def _progress(result: PromptResult) -> None:
    fast, slow = result.lanes["dflash"], result.lanes["plain"]
    ratio = slow.seconds_per_token / fast.seconds_per_token
    same = "same text" if fast.same_text else f"text differs from token {fast.first_difference} on"
    note(f"{result.name}: {len(fast.tokens)} tokens, {ratio:.2f}x, {same}")


def _show(data: dict[str, Any], as_json: bool, pair: Pair) -> None:
    import json

    from dflash_hf.bench.report import report_lines

    if as_json:
        typer.echo(json.dumps(data, indent=1))
        return
    machine = data["provenance"]["machine"]
    typer.echo(pair.describe())
    typer.echo(
        f"{machine['accelerator'] or machine['cpu']}, {machine['threads']} thread{'s' * (machine['threads'] != 1)}"
    )
    for line in report_lines(data):
        typer.echo(line)
