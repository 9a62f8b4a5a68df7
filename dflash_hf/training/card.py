"""What a trained drafter's card says beyond its description: how it was made, and what it accepts."""

from __future__ import annotations

from typing import Any

__all__ = ["training_section"]


def training_section(provenance: dict[str, Any]) -> str:
    """Markdown that follows the card of :mod:`dflash_hf.checkpoints.card`, from ``publish``'s provenance."""
    answers, recipe, started = provenance["answers"], provenance["recipe"], provenance.get("started_from")
    made = [
        ("Target", provenance["target"]),
        ("Block size", provenance["block_size"]),
        *([("Started from", started["name"])] if started else []),
        ("Layers", provenance["layers"]),
        ("Head", _head(provenance)),
        ("Target layers read", ", ".join(map(str, provenance["target_layer_ids"]))),
        ("Thinking mode", _THINKING[provenance["thinking"]]),
        ("Answers", f"{answers['documents']:,} of the target, {answers['tokens']:,} tokens"),
        ("From", ", ".join(f"{source} ({count:,})" for source, count in answers["sources"].items())),
        ("Steps", f"{provenance['steps']:,} of {recipe['documents_per_step']} documents"),
        ("Loss", f"{recipe['loss']}, {recipe['position_weights']} weights; {recipe['optimizer']}"),
    ]
    rows = "\n".join(f"| {name} | {value} |" for name, value in made)
    return f"""
## How it was made

| | |
|---|---|
{rows}

```console
$ {provenance["command"]}
```

`{PROVENANCE}` has the whole recipe, the versions and the hashes.
{_taus(provenance["evaluation"], started)}"""


def _head(provenance: dict[str, Any]) -> str:
    head, rows = provenance["head"], provenance["draft_vocab_size"]
    sizes = ", ".join(f"{key.replace('_', ' ')} {head[key]}" for key in ("rank", "top_k") if key in head)
    said = f"{rows:,} tokens" if rows else "all of the target's tokens"
    return f"{head['kind']}{f' ({sizes})' if sizes else ''}, {said}"


PROVENANCE = "provenance.json"
_THINKING = {True: "on", False: "off", None: "the template's own", "mixed": "mixed"}


def _taus(evaluation: dict[str, Any], started: dict[str, Any] | None) -> str:
    if not evaluation:
        return ""
    slots = max(len(row["accepted_by_position"]) for row in evaluation.values())
    head = " | ".join(f"slot {slot + 1}" for slot in range(slots))
    lines = [
        f"| {name.replace('_', ' ')} | {row['documents']} | {row['tau']:.2f} | "
        + " | ".join(f"{share:.2f}" for share in row["accepted_by_position"])
        + " |"
        for name, row in evaluation.items()
    ]
    return f"""
## What it accepts

Simulated greedy decoding of answers this run did not train on: τ is committed tokens per round, the target's own
token and the answer's last round counted; then the share of rounds that accepted each slot.

| set | answers | τ | {head} |
|---|---|---|{"---|" * slots}
{chr(10).join(lines)}
{_not_compared(started)}"""


def _not_compared(started: dict[str, Any] | None) -> str:
    if not started or not started["prompts_not_compared"]:
        return ""
    sets = ", ".join(name.replace("_", " ") for name in started["prompts_not_compared"])
    return f"""
The prompts of these sets were not compared with those that {started["name"]}, which this drafter started from, was
trained on: {sets}.
"""
