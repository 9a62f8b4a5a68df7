"""``dflash-hf verify``: is the drafted text the plain one? Exit code 3 where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_hf.bench.answers import Sampling, drafted, plain
from dflash_hf.bench.pair import Pair
from dflash_hf.cli.command import CHECK_FAILED, DraftWindow, PairOptions, command, emit_json, note
from dflash_hf.cli.pair import load
from dflash_hf.options import DFlashOptions

if TYPE_CHECKING:
    from dflash_hf.bench.judge import Verdict

__all__ = ["PROMPTS", "register"]

PROMPTS = (
    "A baker sells 14 loaves in the morning and three times as many in the afternoon. "
    "How many loaves does she sell in a day? Show the steps.",
    "Write a Python function that returns the longest word of a sentence, with a short docstring.",
    "Describe a walk along a river in early spring in five sentences.",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One prompt: both texts, and the judge's verdict on the drafted one."""

    prompt: str
    tokens: int
    first_difference: int | None
    verdict: Verdict
    ok: bool  # the plain text itself, or parted from it at near ties only


def register(app: typer.Typer) -> None:
    command(app, "verify")(verify)


def verify(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; three built-in ones when none is given.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of each answer.")] = 96,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: the prompts as they are.")] = False,
    thinking: Annotated[
        bool | None, typer.Option(help="Thinking mode of the chat template. Default: the template's own choice.")
    ] = None,
    draft_window: DraftWindow = None,
    *,
    pair: PairOptions,
    as_json: bool,
) -> None:
    """Run prompts drafted and plain, greedily, and judge every drafted token against the plain model."""
    options = DFlashOptions(draft_window=draft_window)
    loaded = load(pair)
    sampling = Sampling(max_new_tokens)
    checks = [_check(loaded, prompt, sampling, options, raw, thinking) for prompt in prompts or PROMPTS]
    ok = all(check.ok for check in checks)
    if as_json:
        emit_json("verify", {"pair": loaded.names, "ok": ok, **_totals(checks), "prompts": [_row(c) for c in checks]})
    else:
        for check in checks:
            typer.echo(_line(check))
        totals = _totals(checks)
        typer.echo(
            f"{loaded.describe()}\n{'ok' if ok else 'FAILED'}: {totals['identical']} of {len(checks)} texts identical, "
            f"near ties {totals['near_ties']} of {totals['tokens']} tokens ({totals['near_tie_share']:.2%}), "
            f"beyond a near tie {totals['failures']}"
        )
    if not ok:
        raise typer.Exit(CHECK_FAILED)


def _check(
    pair: Pair, prompt: str, sampling: Sampling, options: DFlashOptions, raw: bool, thinking: bool | None
) -> Check:
    from dflash_hf.bench.judge import first_difference, judge, parts_at_near_tie
    from dflash_hf.bench.measure import to_device
    from dflash_hf.bench.prompts import encode

    note(f"checking: {prompt[:60]}")
    inputs = to_device(encode(pair.tokenizer, prompt, chat=not raw, thinking=thinking), pair.device)
    fast, slow = drafted(pair, inputs, sampling, options=options), plain(pair, inputs, sampling)
    verdict = judge(pair.model, inputs["input_ids"], fast.tokens)
    ok = parts_at_near_tie(slow.tokens, fast.tokens, verdict)
    return Check(prompt, len(fast.tokens), first_difference(slow.tokens, fast.tokens), verdict, ok)


def _totals(checks: list[Check]) -> dict[str, Any]:
    tokens = sum(check.tokens for check in checks)
    near = sum(len(check.verdict.near_ties) for check in checks)
    return {
        "identical": sum(check.first_difference is None for check in checks),
        "tokens": tokens,
        "near_ties": near,
        "near_tie_share": near / tokens if tokens else 0.0,
        "failures": sum(len(check.verdict.failures) for check in checks if not check.ok),
    }


def _row(check: Check) -> dict[str, Any]:
    judged = check.verdict.to_dict()
    judged.pop("first_difference")  # the replay's; the texts' own stands beside it
    return {
        "prompt": check.prompt,
        "ok": check.ok,
        "identical": check.first_difference is None,
        "first_difference": check.first_difference,
        "judge": judged,
    }


def _line(check: Check) -> str:
    if check.first_difference is None:
        state = "identical"
    elif check.ok:
        state = f"near tie; first difference at token {check.first_difference}"
    elif check.verdict.ok:
        state = f"DIFFERENT: one text ends at token {check.first_difference}, the other goes on"
    else:
        place = check.verdict.failures[0]
        state = f"DIFFERENT: token {place} is {check.verdict.gaps[place]:.3g} below the plain model's best"
    return f"{state}: {check.tokens} tokens, {check.prompt[:60]}"
