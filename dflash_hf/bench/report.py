"""From paired runs to figures: ratios with intervals, same-text beside every speed, tau, and where a round's time goes.

In: :func:`dflash_hf.bench.measure.measure`'s results. Out: a dict under the schema ``dflash-hf/bench/1``, and lines
for people.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from dflash_hf.bench.measure import LaneResult, PromptResult
from dflash_hf.bench.ratios import Spread, spread
from dflash_hf.trace import RoundRecord, merge_metrics

__all__ = ["SCHEMA", "report", "report_lines", "write_report"]

SCHEMA = "dflash-hf/bench/1"
_PARTS = ("drafter", "head", "target", "replay", "loop")


def report(
    results: Sequence[PromptResult],
    *,
    baseline: str = "plain",
    provenance: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Figures of one measurement, ready for JSON.

    ``speedup`` is the median over prompts of (baseline's time per token / this lane's), whole calls, prefill
    included. ``same_text`` stands beside it. ``tau`` comes token-weighted and as the mean over prompts.
    """
    names = list(results[0].lanes)
    return {
        "schema": SCHEMA,
        "provenance": provenance or {},
        "settings": {"baseline": baseline, "seed": seed, **(settings or {})},
        "lanes": {name: _lane(results, name, baseline, seed) for name in names},
        "prompts": [_prompt(result, baseline) for result in results],
    }


def write_report(path: str | Path, data: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _lane(results: Sequence[PromptResult], name: str, baseline: str, seed: int) -> dict[str, Any]:
    records = [result.lanes[name] for result in results]
    tokens = sum(len(record.tokens) for record in records)
    seconds = sum(len(record.tokens) * record.seconds_per_token for record in records)
    figures: dict[str, Any] = {"tokens": tokens, "tokens_per_second": tokens / seconds if seconds else None}
    if name != baseline:
        ratios = [_ratio(result, name, baseline) for result in results]
        figures["speedup"] = _spread(spread(ratios, seed=seed))
        figures["same_text"] = {
            "prompts": len(records),
            "identical": sum(record.same_text is True for record in records),
            "near_tie": sum(record.near_tie is True for record in records),
            "different": sum(record.near_tie is False for record in records),
            "not_judged": sum(record.same_text is False and record.near_tie is None for record in records),
            "not_repeatable": sum(not record.repeatable for record in records),
        }
    if any(record.traces for record in records):
        plain = [result.lanes[baseline] for result in results]
        figures["drafting"] = _drafting(records, plain)
    return figures


def _drafting(records: Sequence[LaneResult], plain: Sequence[LaneResult]) -> dict[str, Any]:
    # Repeats of a prompt take the same rounds, so acceptance counts its first run; times count all runs.
    first = [record.traces[0] for record in records if record.traces]
    metrics = merge_metrics(first)
    each = [tau for trace in first if (tau := trace.metrics()["tau"]) is not None]
    rounds = [item for record in records for trace in record.traces for item in trace.rounds if item.drafted]
    split = round_split(rounds)
    step_ms = 1e3 * fmean(record.seconds_per_token for record in plain)
    return {
        "tau_token_weighted": metrics["tau"],
        "tau_prompt_weighted": fmean(each) if each else None,
        "tau_uncut": metrics["tau_uncut"],
        "draft_acceptance_rate": metrics["draft_acceptance_rate"],
        "acceptance_histogram": metrics["acceptance_histogram"],
        "acceptance_by_position": metrics["acceptance_by_position"],
        "conditional_acceptance_by_position": metrics["conditional_acceptance_by_position"],
        "round": split,
        "round_cost_in_plain_steps": split["round_ms"] / step_ms if split and step_ms else None,
        "fallbacks": sorted({trace.fallback for trace in first if trace.fallback}),
    }


def round_split(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """Mean milliseconds of a round's parts; the shares of loop and replay in the whole, over all rounds together."""
    if not rounds:
        return {}
    parts = {f"{part}_ms": fmean(getattr(record, f"{part}_ms") for record in rounds) for part in _PARTS}
    whole = fmean(record.round_ms for record in rounds)
    return {
        "rounds": len(rounds),
        "round_ms": whole,
        **parts,
        "loop_share": parts["loop_ms"] / whole if whole else None,
        "replay_share": parts["replay_ms"] / whole if whole else None,
    }


def _ratio(result: PromptResult, name: str, baseline: str) -> float:
    return result.lanes[baseline].seconds_per_token / result.lanes[name].seconds_per_token


def _spread(value: Spread | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)


def _prompt(result: PromptResult, baseline: str) -> dict[str, Any]:
    lanes = {}
    for name, record in result.lanes.items():
        row: dict[str, Any] = {"tokens": len(record.tokens), "seconds": record.seconds}
        if name != baseline:
            row |= {
                "speedup": _ratio(result, name, baseline),
                "same_text": record.same_text,
                "first_difference": record.first_difference,
                "near_tie": record.near_tie,
            }
        if record.traces:
            row["tau"] = record.traces[0].metrics()["tau"]
        lanes[name] = row
    return {"name": result.name, "group": result.group, "prompt_tokens": result.prompt_tokens, "lanes": lanes}


def report_lines(data: dict[str, Any]) -> list[str]:
    """One line a lane, speed and same-text always together; a second for a drafting lane's rounds."""
    lines = []
    for name, lane in data["lanes"].items():
        line = (
            f"{name}: {lane['tokens_per_second']:.1f} tokens/s" if lane["tokens_per_second"] else f"{name}: no tokens"
        )
        if speed := lane.get("speedup"):
            same = lane["same_text"]
            line += (
                f", {speed['median']:.2f}x {data['settings']['baseline']} "
                f"({speed['kind']} {speed['low']:.2f} to {speed['high']:.2f}); "
                f"same text {same['identical']} of {same['prompts']}"
            )
            others = ("near_tie", "different", "not_judged", "not_repeatable")
            rest = [f"{same[key]} {key.replace('_', ' ')}" for key in others if same[key]]
            line += f" ({', '.join(rest)})" if rest else ""
        lines.append(line)
        if drafting := lane.get("drafting"):
            lines.append(_drafting_line(drafting))
    return lines


def _drafting_line(drafting: dict[str, Any]) -> str:
    if not drafting["round"]:
        return f"  nothing was drafted: {'; '.join(drafting['fallbacks']) or 'no rounds'}"
    split = drafting["round"]
    parts = ", ".join(f"{part} {took:.2f}" for part in _PARTS if (took := split[f"{part}_ms"]))
    replayed = f", replay {split['replay_share']:.1%}" if split["replay_share"] else ""
    return (
        f"  tau {drafting['tau_token_weighted']:.2f} token-weighted, {drafting['tau_prompt_weighted']:.2f} by prompt; "
        f"round {split['round_ms']:.2f} ms ({parts}; loop {split['loop_share']:.1%}{replayed}), "
        f"{drafting['round_cost_in_plain_steps']:.2f} plain steps"
    )
