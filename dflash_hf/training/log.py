"""``log.jsonl``: the loss of every step and every evaluation, one JSON object a line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dflash_hf.errors import TrainingError

__all__ = ["RunLog"]


class RunLog:
    """A run's log, cut back to the step the run goes on from: steps after its last saved state are made again.

    Raises:
        TrainingError: the folder cannot be written.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / "log.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
            kept = [line for line in lines if (entry := _parsed(line)) and entry["step"] <= step and step]
            if kept != lines:
                partial = self.path.with_suffix(".partial")
                partial.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
                os.replace(partial, self.path)
        except OSError as error:
            raise TrainingError(f"cannot write to {folder} ({error}); choose another output") from error

    def write(self, **entry: Any) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as log:
                log.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise TrainingError(f"cannot write {self.path} ({error}); the last saved state is kept") from error


def _parsed(line: str) -> dict[str, Any] | None:
    """None for a line that a kill cut short."""
    try:
        return json.loads(line)
    except ValueError:
        return None
