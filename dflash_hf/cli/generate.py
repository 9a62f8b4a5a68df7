"""``dflash-hf generate``: an answer with its accepted spans, and the same prompt decoded plainly beside it."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_hf.bench.answers import Answer, Comparison, Sampling, compare, drafted, plain
from dflash_hf.bench.pair import Pair
from dflash_hf.cli.command import CHECK_FAILED, DraftWindow, PairOptions, command, emit_json
from dflash_hf.cli.live import LiveAnswer, spans_of
from dflash_hf.cli.marks import Marks, marks_for
from dflash_hf.cli.pair import load
from dflash_hf.options import DFlashOptions

__all__ = ["register"]

_WARM_UP_TOKENS = 4


class Switch(StrEnum):
    """``--compare on`` reads better in a script than a bare flag, and names its default."""

    on = "on"
    off = "off"


def register(app: typer.Typer) -> None:
    command(app, "generate")(generate)


def generate(
    prompt: Annotated[str | None, typer.Argument(help="What to say; - or nothing reads it from stdin.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy; above, tokens are drawn.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus of the draw.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    compare_with_plain: Annotated[
        Switch, typer.Option("--compare", help="Also run the prompt without the drafter, and compare.")
    ] = Switch.on,
    trace: Annotated[Path | None, typer.Option(help="Write the trace of every round to this file.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: the prompt as it is.")] = False,
    thinking: Annotated[
        bool | None, typer.Option(help="Thinking mode of the chat template. Default: the template's own choice.")
    ] = None,
    draft_window: DraftWindow = None,
    *,
    pair: PairOptions,
    as_json: bool,
) -> None:
    """Answer one prompt with drafting; then say what it gained and whether the text is the plain one."""
    text = _prompt(prompt)
    if trace is not None and not trace.resolve().parent.is_dir():
        raise typer.BadParameter(f"--trace {trace}: there is no folder {trace.resolve().parent}")
    sampling = Sampling(max_new_tokens, temperature, top_p, seed)
    loaded = load(pair)
    inputs = _encoded(loaded, text, raw, thinking)
    with_plain = compare_with_plain is Switch.on
    if with_plain:
        _warm_up(loaded, inputs, sampling)
    answer, live = _stream(loaded, inputs, sampling, draft_window, quiet=as_json)
    other = plain(loaded, inputs, sampling) if with_plain else None
    outcome = compare(loaded, inputs, answer.tokens, other.tokens) if other and sampling.greedy else None
    if trace is not None:
        _write_trace(trace, answer, loaded)
    if as_json:
        emit_json("generate", _as_dict(loaded, text, sampling, answer, other, outcome))
    else:
        _summarise(loaded, sampling, live, answer, other, outcome)
    if outcome is not None and not outcome.ok:
        raise typer.Exit(CHECK_FAILED)


def _prompt(argument: str | None) -> str:
    piped = argument == "-" or (argument is None and not sys.stdin.isatty())
    text = sys.stdin.read() if piped else argument
    if text is None or not text.strip():
        raise typer.BadParameter("no prompt: give it as an argument, or on stdin")
    return text.rstrip("\n") if piped else text


def _encoded(pair: Pair, text: str, raw: bool, thinking: bool | None) -> Any:
    from dflash_hf.bench.measure import to_device
    from dflash_hf.bench.prompts import encode

    return to_device(encode(pair.tokenizer, text, chat=not raw, thinking=thinking), pair.device)


def _warm_up(pair: Pair, inputs: Any, sampling: Sampling) -> None:
    """What a process pays once (allocations, kernels) belongs to neither run."""
    short = Sampling(min(_WARM_UP_TOKENS, sampling.max_new_tokens))
    drafted(pair, inputs, short)
    plain(pair, inputs, short)


def _stream(
    pair: Pair, inputs: Any, sampling: Sampling, draft_window: int | None, *, quiet: bool
) -> tuple[Answer, LiveAnswer]:
    def write(text: str) -> None:
        if not quiet:
            typer.echo(text, nl=False, color=marks.styled)
            sys.stdout.flush()

    marks = Marks(styled=False) if quiet else marks_for(sys.stdout)
    live = LiveAnswer(_decode(pair), marks, write)
    options = DFlashOptions(draft_window=draft_window, on_round=live.on_round)
    return drafted(pair, inputs, sampling, streamer=live, options=options), live


def _decode(pair: Pair) -> Any:
    from dflash_hf.streaming import decoder_of

    return decoder_of(pair.tokenizer)


def _write_trace(path: Path, answer: Answer, pair: Pair) -> None:
    assert answer.trace is not None
    answer.trace.target, answer.trace.drafter = pair.names["target"], pair.names["drafter"]
    answer.trace.to_json(path)


def _summarise(
    pair: Pair, sampling: Sampling, live: LiveAnswer, answer: Answer, other: Answer | None, outcome: Comparison | None
) -> None:
    marks = marks_for(sys.stdout)
    if not live.exact:
        typer.echo("\nThis tokenizer rewrote text after the fact; the answer as a whole:\n")
        typer.echo(marks.own(_decode(pair)(answer.tokens)))
    assert answer.trace is not None
    figures = answer.trace.metrics()
    typer.echo(f"\n{pair.describe()}")
    if figures["tau"] is None:
        typer.echo(f"{len(answer.tokens)} tokens, no round drafted anything")
    else:
        rounds = figures["num_spec_steps"] + figures["num_plain_steps"]
        typer.echo(f"{len(answer.tokens)} tokens: one by the prefill, the others in {_count(rounds, 'round')}")
        typer.echo(
            f"tau {figures['tau']:.2f} tokens a round, the target's own included; "
            f"{figures['draft_acceptance_rate']:.0%} of drafted tokens accepted"
            + (f" ({marks.legend})" if figures["num_accepted_draft_tokens"] else "")
        )
    typer.echo(f"drafted: {_speed(answer)}" + (f"   plain: {_speed(other)}" if other else ""))
    if outcome is not None and other is not None:
        ratio = answer.tokens_per_second / other.tokens_per_second
        typer.echo(f"{ratio:.2f}x plain in this one run; {outcome.line}")
        if ratio < 1 and pair.device.type == "cpu":
            typer.echo("on a CPU a pass over a block costs far more than a pass over a token: see Limits in the README")
    elif other is not None:
        typer.echo(f"sampled at temperature {sampling.temperature:g}: two draws, so their texts are not compared")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _speed(answer: Answer) -> str:
    return f"{answer.tokens_per_second:.1f} tokens/s ({answer.seconds:.2f} s)"


def _as_dict(
    pair: Pair, prompt: str, sampling: Sampling, answer: Answer, other: Answer | None, outcome: Comparison | None
) -> dict[str, Any]:
    from dataclasses import asdict

    from dflash_hf.bench.provenance import describe_model, versions

    assert answer.trace is not None
    decode = _decode(pair)
    body: dict[str, Any] = {
        "pair": pair.names,
        "model": describe_model(pair.model),
        "versions": versions(),
        "settings": asdict(sampling),
        "prompt": prompt,
        "text": decode(answer.tokens),
        "tokens": answer.tokens,
        "spans": [asdict(span) for span in spans_of(answer.trace, decode)],
        "seconds": answer.seconds,
        "tokens_per_second": answer.tokens_per_second,
        "metrics": answer.trace.metrics(),
        "plain": None,
    }
    if other is not None:
        body["plain"] = {
            "seconds": other.seconds,
            "tokens": len(other.tokens),
            "tokens_per_second": other.tokens_per_second,
            "identical": None if outcome is None else outcome.identical,
            "first_difference": None if outcome is None else outcome.first_difference,
            "near_tie": None if outcome is None else outcome.near_tie,
        }
    return body
