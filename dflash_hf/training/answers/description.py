"""answers.json: how the answers of a folder were made, and whether a further run makes the same kind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dflash_hf.errors import TrainingError
from dflash_hf.training.answers.answers import DESCRIPTION, AnswerFolder

__all__ = ["describe"]

_FREE = frozenset({"prompts.count", "prompts.skipped", "versions"})  # may differ when a run goes on


def describe(folder: Path, description: dict[str, Any]) -> None:
    """Write answers.json, or see that what is there says the same; versions that differ are written behind it.

    Raises:
        TrainingError: the answers in the folder were made otherwise, or nobody knows how.
    """
    path = folder / DESCRIPTION
    if path.exists():
        found = AnswerFolder(folder).description
        ours, theirs = _flat(description), _flat(found)
        changed = sorted(
            key for key in ours.keys() | theirs.keys() if key not in _FREE and ours.get(key) != theirs.get(key)
        )
        if changed:
            raise TrainingError(
                f"{folder} holds answers made with other values of {', '.join(changed)} (there "
                f"{', '.join(json.dumps(theirs.get(key)) for key in changed)}; now "
                f"{', '.join(json.dumps(ours.get(key)) for key in changed)}); choose another folder"
            )
        earlier = [each for each in found["versions"] if each not in description["versions"]]
        description = description | {"versions": earlier + description["versions"]}
        if description == found:
            return
    elif any(folder.glob("answers-*.jsonl")):
        raise TrainingError(
            f"{folder} holds answers but no {DESCRIPTION} that says how they were made; choose another folder"
        )
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(description, indent=1, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found
