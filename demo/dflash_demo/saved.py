"""A run as a file: what the page offers for download, and what it replays.

Two kinds are read: ``dflash-hf/run/1``, which this page writes and any page replays (it carries its texts), and the
bare ``dflash-hf/trace/1`` of ``dflash-hf generate --trace`` and ``Trace.to_json``, whose ids need the target's
tokenizer.
A file may come from anyone: it is checked field by field, and its texts are text.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dflash_demo.runs import Run
from dflash_demo.story import round_message, rounds_of
from dflash_demo.tokens import special_names
from dflash_hf import RoundRecord, Trace, TraceError
from dflash_hf.bench.pair import Pair
from dflash_hf.streaming import decoder_of
from dflash_hf.target.view import model_name, public_name

__all__ = ["MAX_BYTES", "MAX_DRAFTED", "MAX_IDS", "MAX_TOKENS", "read_run", "saved_run"]

MAX_BYTES = 20_000_000
MAX_TOKENS, MAX_DRAFTED, MAX_IDS = 10_000, 1_024, 100_000  # of a bare trace's answer, of a round, of all together
_TRACE_SCHEMA = "dflash-hf/trace/1"


class _Clock(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tokens: int = Field(ge=0)
    seconds: float = Field(ge=0)
    first_token: float | None = Field(ge=0)
    done: bool


class _Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["identical", "near_tie", "differs", "sampled", "unchecked"]
    text: str
    token: int | None
    gap: float | None


class _Texts(BaseModel):
    """Of one round: a text a committed token, a text a rejected one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tokens: list[str]
    rejected: list[str]


class SavedRun(BaseModel):
    """``dflash-hf/run/1``."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["dflash-hf/run/1"] = Field(alias="schema")
    prompt: str
    pair: dict[Literal["target", "drafter", "dtype", "device"], str]
    probabilities: bool
    trace: dict[str, Any]
    texts: list[_Texts]  # round 0 is the prefill
    specials: dict[int, str] = {}  # names of tokens without a text, by id
    drafted_run: _Clock
    plain_run: _Clock | None
    verdict: _Verdict | None
    why: str | None
    made: str = ""  # when, and with which version


def saved_run(run: Run, made: str) -> dict[str, Any]:
    """A run as ``dflash-hf/run/1``; of one that was stopped, what it did until then.

    Raises:
        TraceError: the run has no trace: it failed, or was stopped before its first round.
    """
    if run.outcome.trace is None:
        raise TraceError("This run made no round, so there is no trace of it.")
    message = run.story.message(whole=True)
    kept = ("prompt", "pair", "probabilities", "drafted_run", "plain_run", "verdict", "why")
    texts = [
        {"tokens": [token[0] for token in round_["tokens"]], "rejected": [token[0] for token in round_["rejected"]]}
        for round_ in message["rounds"]
    ]
    body = {name: message[name] for name in kept}
    used, names = set(_ids(run.outcome.trace)), run.outcome.specials
    body["specials"] = {str(token): name for token, name in sorted(names.items()) if token in used}
    return {"schema": "dflash-hf/run/1", **body, "made": made, "texts": texts, "trace": run.outcome.trace.to_dict()}


def read_run(source: str | Path, pair: Pair | None) -> dict[str, Any]:
    """The message that shows a file's run.

    Args:
        source: the file.
        pair: loaded, for the texts of a bare trace; None when there is none.

    Raises:
        TraceError: the file is too large, damaged, of another kind or without a token, or a bare trace of another
            target.
    """
    path = Path(source)
    if path.stat().st_size > MAX_BYTES:
        raise TraceError(f"The file has {path.stat().st_size:,} bytes; this page reads up to {MAX_BYTES:,}.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(data, allow_nan=False)  # Python reads NaN and 1e999, browsers do not
    except (ValueError, RecursionError) as error:
        raise TraceError(f"This is no trace: the file is not JSON ({error}).") from error
    kind = data.get("schema") if isinstance(data, dict) else None
    message = _bare(_checked_trace(data), pair) if kind == _TRACE_SCHEMA else _whole(_checked_run(data))
    try:
        json.dumps(message, allow_nan=False)
    except ValueError as error:
        raise TraceError("The trace is damaged: its numbers are too large.") from error
    return message


def _checked_run(data: Any) -> SavedRun:
    try:
        return SavedRun.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "file"
        raise TraceError(f"This is no run this page can show: {place}: {first['msg']}.") from error


def _checked_trace(data: dict[str, Any]) -> Trace:
    """A trace whose values are also of the right kind: ``Trace.from_dict`` looks at names only."""
    trace = Trace.from_dict(data)
    try:
        return TypeAdapter(Trace).validate_json(json.dumps(asdict(trace)), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise TraceError(f"The trace is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from error


def _bare(trace: Trace, pair: Pair | None) -> dict[str, Any]:
    _refuse_empty(trace)
    if pair is None:
        raise TraceError("This trace holds token ids only, and the pair that turns them into text is not loaded yet.")
    if trace.target not in (pair.names["target"], public_name(model_name(pair.model)), ""):
        raise TraceError(
            f"This trace was made with {trace.target}, and this page has {pair.names['target']}. Start the demo with "
            "that target, or load a file downloaded from a page like this one: it carries its text."
        )
    _refuse_endless(trace)
    outside = [token for token in _ids(trace) if not 0 <= token < len(pair.tokenizer)]
    if outside:
        raise TraceError(f"The trace is damaged: {pair.names['target']} has no token {outside[0]}.")
    return _message(
        trace,
        rounds=rounds_of(trace, decoder_of(pair.tokenizer), special_names(pair.tokenizer)),
        prompt="",
        pair={"target": trace.target, "drafter": trace.drafter, "dtype": trace.dtype, "device": trace.device},
        drafted_run=_clock_of(trace),
        notice="A trace without its prompt and without a plain run: replayed as it was recorded.",
    )


def _refuse_empty(trace: Trace) -> None:
    if trace.first_token is not None or trace.rounds:
        return
    if trace.rows:
        raise TraceError(
            f"This trace is of a batch of {len(trace.rows)} rows, and this page shows one answer. Save one row: "
            "trace.rows[0].to_json(path)."
        )
    if trace.fallback:
        raise TraceError(f"There is nothing to replay: nothing was drafted. {trace.fallback}")
    raise TraceError("There is nothing to replay: the trace has no token.")


def _refuse_endless(trace: Trace) -> None:
    """Ids made to be no text are decoded over and over, so this page would be busy with them for hours."""
    for found, most, what in (
        (len(trace.tokens), MAX_TOKENS, "tokens in its answer"),
        (max((len(record.drafted) for record in trace.rounds), default=0), MAX_DRAFTED, "drafted in a round"),
        (len(_ids(trace)), MAX_IDS, "token ids"),
    ):
        if found > most:
            raise TraceError(f"The trace has {found:,} {what}; this page shows up to {most:,}.")


def _ids(trace: Trace) -> list[int]:
    return trace.tokens + [token for record in trace.rounds for token in record.drafted]


def _whole(saved: SavedRun) -> dict[str, Any]:
    trace = _checked_trace(saved.trace)
    _refuse_empty(trace)
    records = ([] if trace.first_token is None else [_prefill(trace)]) + trace.rounds
    if len(records) != len(saved.texts):
        raise TraceError(f"The run is damaged: {len(records)} rounds, texts of {len(saved.texts)}.")
    rounds, at = [], 0.0
    for number, (record, texts) in enumerate(zip(records, saved.texts, strict=True)):
        at += record.round_ms / 1e3
        sizes = (len(texts.tokens), len(texts.rejected))
        if sizes != (record.committed, len(record.drafted) - record.accepted):
            raise TraceError(f"The run is damaged: round {number} has texts of other tokens.")
        rounds.append(round_message(number, record, texts.tokens, texts.rejected, at, saved.specials))
    stopped = not (saved.drafted_run.done and (saved.plain_run is None or saved.plain_run.done))
    made = f", made {saved.made}" if saved.made else ""
    return _message(
        trace,
        phase="stopped" if stopped else "done",
        rounds=rounds,
        prompt=saved.prompt,
        pair=dict(saved.pair),
        drafted_run=saved.drafted_run.model_dump(),
        plain_run=None if saved.plain_run is None else saved.plain_run.model_dump(),
        verdict=None if saved.verdict is None else saved.verdict.model_dump(),
        probabilities=saved.probabilities,
        why=saved.why,
        notice=f"A recorded run{made}{', stopped before its end' if stopped else ''}.",
    )


def _prefill(trace: Trace) -> RoundRecord:
    took = trace.prefill_ms
    return RoundRecord([], 0, trace.first_token, target_ms=took, round_ms=took, bonus_p=trace.first_token_p)


def _clock_of(trace: Trace) -> dict[str, Any]:
    seconds = trace.total_ms / 1e3
    return {"tokens": len(trace.tokens), "seconds": seconds, "first_token": trace.prefill_ms / 1e3, "done": True}


def _message(trace: Trace, *, rounds: list[dict[str, Any]], notice: str, **more: Any) -> dict[str, Any]:
    return {
        "run": uuid4().hex[:8],
        "phase": "done",
        "notice": {"kind": "info", "text": notice},
        "block": trace.block_size,
        "probabilities": any(record.target_p for record in trace.rounds),
        "count": len(rounds),
        "first": 0,
        "rounds": rounds,
        "plain_run": None,
        "verdict": None,
        "why": None,
        **more,
    }
