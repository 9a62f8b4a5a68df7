"""``dflash-hf doctor``: do these two draft, and if they hardly do, what is wrong? Exit code 3 where a check fails.

A check fails where the pair does not fit, where it keeps next to nothing of its drafts, and where another reading of
the drafter's files drafts clearly better. One that drafts a little better is a hint: 64 tokens do not prove it.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Annotated, Any

import typer

from dflash_hf.bench.pair import Pair
from dflash_hf.cli.command import CHECK_FAILED, PairOptions, command, emit_json, note
from dflash_hf.cli.lines import megabytes
from dflash_hf.cli.pair import load
from dflash_hf.errors import DFlashWarning, IncompatiblePairError, UnsupportedTargetError

__all__ = ["PROMPT", "register"]

PROMPT = (  # arithmetic in words: what drafters are trained on most, so a sound pair shows more than one token a round
    "A bakery sells 24 loaves a day from Monday to Friday and twice as many on Saturday. How many loaves does it sell "
    "in one week? Work it out step by step."
)
_FEWEST = 8  # anchors, below which a probe says nothing


def register(app: typer.Typer) -> None:
    command(app, "doctor")(doctor)


def doctor(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the probe's answer.")] = 64,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: the prompt as it is.")] = False,
    thinking: Annotated[
        bool | None, typer.Option(help="Thinking mode of the chat template. Default: the template's own choice.")
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Try other readings of the drafter's files although it drafts well.")
    ] = False,
    *,
    pair: PairOptions,
    as_json: bool,
) -> None:
    """Check a pair: what is loaded, whether it fits, how many tokens a round it keeps, and what would keep more.

    Nothing on disk is changed. With --target alone, the drafter is the one published for it.
    """
    from dflash_hf.bench.provenance import describe_machine, versions

    body: dict[str, Any] = {"ok": False, "versions": versions(), "machine": describe_machine()}
    if pair.target is not None and pair.drafter is None:
        pair = replace(pair, drafter="auto")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DFlashWarning)
        try:
            loaded = load(pair)
        except (IncompatiblePairError, UnsupportedTargetError) as error:
            loaded = None
            body["pairing"] = {"fits": False, "why": str(error), "doubts": []}
    if loaded is not None:
        doubts = [str(each.message) for each in caught if issubclass(each.category, DFlashWarning)]
        body["pairing"] = {"fits": True, "why": None, "doubts": doubts}
        body |= _examine(loaded, tokens, raw, thinking, thorough)
        probe = body["probe"]
        body["ok"] = probe is None or not (probe["near_one"] or probe["better"])
    if as_json:
        emit_json("doctor", body)
    else:
        _show(body)
    if not body["ok"]:
        raise typer.Exit(CHECK_FAILED)


def _examine(pair: Pair, tokens: int, raw: bool, thinking: bool | None, thorough: bool) -> dict[str, Any]:
    from dflash_hf.bench.checkup import cache_kind, describe_pair
    from dflash_hf.bench.diagnose import NEAR_ONE, diagnose
    from dflash_hf.bench.measure import to_device
    from dflash_hf.bench.probe import probe_text
    from dflash_hf.bench.prompts import encode
    from dflash_hf.target.view import view_target

    inputs = to_device(encode(pair.tokenizer, PROMPT, chat=not raw, thinking=thinking), pair.device)
    found: dict[str, Any] = {"pair": pair.names, **describe_pair(pair)}
    found["cache"] = cache_kind(pair.model, inputs["input_ids"])
    note(f"probing: {tokens} tokens of the target's own answer")
    text = probe_text(view_target(pair.model), inputs, tokens)
    anchors = len(text.anchors)
    found["probe"] = None
    if anchors >= _FEWEST:
        near = float("inf") if thorough else NEAR_ONE
        found["probe"] = {"anchors": anchors, **diagnose(pair.drafter, text, note, near).row()}
    found["answer_tokens"] = text.ids.shape[1] - text.prompt_length
    return found


def _show(body: dict[str, Any]) -> None:
    typer.echo(", ".join(f"{name} {version}" for name, version in body["versions"].items()))
    machine = body["machine"]
    typer.echo(f"machine: {machine['accelerator'] or machine['cpu']}, {machine['threads']} threads")
    pairing = body["pairing"]
    if not pairing["fits"]:
        typer.echo(f"FAILED: {pairing['why']}")
        return
    target, drafter, cache = body["target"], body["drafter"], body["cache"]
    for name, side in (("target", target), ("drafter", drafter)):
        quantised = f", {side['quantization']}" if side["quantization"] else ""
        typer.echo(
            f"{name}: {body['pair'][name]}: {side['class']}, {side['dtype']}{quantised} on {side['device']}, "
            f"attention {side['attn_implementation']}"
        )
    context = megabytes(drafter["context_bytes_per_1k_tokens"])
    size = megabytes(drafter["weights_bytes"])
    typer.echo(f"drafter's files: {drafter['dialect']}; weights {size}, context {context} per 1000 tokens")
    layers = ", ".join(f"{count} x {kind}" for kind, count in cache["layers"].items())
    goes_back = cache["cannot_go_back"] or f"goes back by {cache['goes_back_by']}"
    typer.echo(f"cache: {cache['class']} ({layers}); {goes_back}")
    typer.echo("pairing: fits")
    for title, lines in (
        ("doubt", pairing["doubts"]), ("remark", body["remarks"]), ("filled in", drafter["defaults"]),
        ("note", drafter["notes"]),
    ):  # fmt: skip
        for line in lines:
            typer.echo(f"{title}: {line}")
    _show_probe(body)


def _show_probe(body: dict[str, Any]) -> None:
    probe = body["probe"]
    if probe is None:
        typer.echo(f"probe: the answer has {body['answer_tokens']} tokens, too few to say anything; try --raw")
        return
    shares = " ".join(f"{share:.0%}" for share in probe["accepted_by_position"])
    typer.echo(f"probe: {probe['tau']:.2f} tokens a round over {probe['anchors']} tokens; kept by slot: {shares}")
    if probe["windows_not_tested"]:
        windows = ", ".join(map(str, probe["windows_not_tested"]))
        typer.echo(f"windows of {windows} are longer than this probe, so not tested (--tokens)")
    better, hint, dialect = probe["better"], probe["hint"], body["drafter"]["dialect"]
    if hint is not None:
        typer.echo(
            f"hint: with {hint['change']} it would be {hint['tau']:.2f}, too little more in this probe to call the "
            "files wrong. Ask with --thorough --tokens 512; if it stays, compare both with bench. "
            f"{_how(hint, dialect)}"
        )
    if better is not None:
        few = "near one token a round" if probe["near_one"] else f"{probe['tau']:.2f} tokens a round"
        typer.echo(f"FAILED: {few}; with {better['change']} it would be {better['tau']:.2f}. {_how(better, dialect)}")
    elif probe["near_one"]:
        typer.echo(
            "FAILED: near one token a round, no faster than without a drafter, and no other reading of the files "
            "drafts clearly better. Is this the target that the drafter was trained for, in the same thinking mode "
            "(--thinking, --no-thinking)?"
        )
    else:
        typer.echo("ok")


def _how(reading: dict[str, Any], dialect: str | None) -> str:
    """What to set in config.json for that reading, or that these files cannot say it."""
    if reading["keys"] is None:
        return (
            f"No key of this dialect ({dialect}) says so: the files are of another dialect, or what exported them is "
            "wrong"
        )
    said = " and ".join(f"{path} to {json.dumps(value)}" for path, value in reading["keys"].items())
    return f"To have it so, set {said} in the drafter's config.json"
