"""What a target has written so far, so that a killed run goes on where it was.

A file of JSON lines: first what decides the requests, then one line a request. A line cut short by a kill is not read
and is cut off before the next one is added.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_hf.errors import OptionsError, TrainingError

__all__ = ["RequestLog", "WrittenRequest"]

_SCHEMA = "dflash-hf/requests/1"


@dataclass(frozen=True, slots=True)
class WrittenRequest:
    """Request ``number`` of a run. ``flaw`` says why it cannot be used, "" when it can."""

    number: int
    text: str
    flaw: str = ""


class RequestLog:
    """The file, opened for one run.

    Args:
        path: of the file.
        description: what decides the requests; a file made with another is not continued.
        anew: throw away a file made with another description instead of refusing it.

    Raises:
        OptionsError: the file was made otherwise, or is none of ours.
    """

    def __init__(self, path: Path, description: dict[str, Any], *, anew: bool = False) -> None:
        self.path = path
        self._head = {"schema": _SCHEMA, **description}
        self._read: dict[int, WrittenRequest] = {}
        lines = self._whole_lines()
        if not lines:
            return
        changed = [key for key in {**self._head, **lines[0]} if self._head.get(key) != lines[0].get(key)]
        if changed and anew:
            path.unlink()
        elif changed:
            raise OptionsError(
                f"{path} holds requests of an unfinished run with another {', '.join(changed)}; "
                "run that one to its end, or pass --force to begin anew"
            )
        else:
            self._read = {line["number"]: WrittenRequest(**line) for line in lines[1:]}

    def read(self) -> dict[int, WrittenRequest]:
        """The requests that were there when the log was opened, by number."""
        return dict(self._read)

    def append(self, requests: Iterable[WrittenRequest]) -> None:
        """Add requests; they are on the disk when this returns.

        Raises:
            TrainingError: the disk is full or the folder cannot be written. What was added before is kept.
        """
        try:
            new = not self.path.exists() or not self.path.stat().st_size
            with self.path.open("a", encoding="utf-8", newline="\n") as file:
                for line in [self._head] if new else []:
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.writelines(json.dumps(asdict(request), ensure_ascii=False) + "\n" for request in requests)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise TrainingError(
                f"cannot add to {self.path}: {error.strerror or error}; what was written before is kept, "
                "and the same command goes on from there"
            ) from error

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _whole_lines(self) -> list[dict[str, Any]]:
        """Parsed lines; a torn last one is cut off the file."""
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            if lines and lines[0]["schema"] != _SCHEMA:
                raise KeyError("schema")
        except (ValueError, KeyError, TypeError) as error:
            raise OptionsError(f"{self.path} is not a file of unfinished requests; move it away") from error
        return lines
