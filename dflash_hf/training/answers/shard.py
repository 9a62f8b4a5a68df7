"""One process's file in a folder of answers: only it appends to it, and a kill at any moment leaves whole lines.

Locks are files beside the shards; the system lets go of them when a process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from dflash_hf.errors import TrainingError
from dflash_hf.training.answers.answers import shard_name

__all__ = ["AnswerShard"]

_PATIENCE = 60.0  # seconds for others to get through their start


class AnswerShard:
    """Shard ``number`` of ``count`` of a folder, held for the length of a ``with`` block.

    Args:
        folder: made if it is not there.
        number: from 0.
        count: of shards; all processes that work at the same time have the same.
        on_start: called once, while no other process is starting in this folder.

    Raises:
        TrainingError: on entering: another process holds this shard, or shards of another count; the folder cannot be
            written.
    """

    def __init__(self, folder: Path, number: int, count: int, on_start: Callable[[], None] = lambda: None) -> None:
        self.path = folder / shard_name(number, count)
        self.written = 0  # answers since the block began
        self._folder, self._on_start = folder, on_start
        self._lock = FileLock(self._lock_of(self.path))
        self._file: Any = None

    def __enter__(self) -> AnswerShard:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder / ".start.lock", timeout=_PATIENCE):
                self._refuse_others()
                self._lock.acquire(timeout=0)
                self._on_start()
            self._file = self.path.open("ab", buffering=0)
            self._cut(_whole(self.path))
        except Timeout:
            self.__exit__(None, None, None)
            raise TrainingError(
                f"another process is writing {self.path}; give each process its own shard (--shard 0/2, --shard 1/2), "
                "or wait for it"
            ) from None
        except OSError as error:
            self.__exit__(None, None, None)
            raise TrainingError(
                f"cannot write {self.path}: {error.strerror or error}; choose another folder"
            ) from error
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._lock.release()

    def append(self, lines: list[str]) -> None:
        """Write whole lines and see them on the disk; all or, after an error, none of them.

        Raises:
            TrainingError: the disk is full or otherwise refuses.
        """
        data, before = memoryview("".join(lines).encode()), self._file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())
        except BaseException as error:
            with contextlib.suppress(OSError):  # a torn line is cut off when the shard is next opened
                self._cut(before)
            if not isinstance(error, OSError):
                raise
            raise TrainingError(
                f"cannot write {self.path}: {error.strerror or error}; the {self.written} answers that this run wrote "
                "before are safe. Make room and run the same command again: it goes on from there"
            ) from error
        self.written += len(lines)

    def _cut(self, size: int) -> None:
        if self._file.seek(0, os.SEEK_END) > size:
            self._file.truncate(size)

    def _refuse_others(self) -> None:
        count = self.path.name.partition("-of-")[2]
        for other in sorted(self._folder.glob("answers-*-of-*.jsonl")):
            if other.name.partition("-of-")[2] == count:
                continue
            try:
                with FileLock(self._lock_of(other), timeout=0):
                    pass
            except Timeout:
                raise TrainingError(
                    f"another process is writing {other}: shards of another count than {self.path.name} would make "
                    "the same answers; wait for it, or stop it first"
                ) from None

    @staticmethod
    def _lock_of(path: Path) -> Path:
        return path.with_name(f".{path.name}.lock")


def _whole(path: Path, step: int = 1 << 20) -> int:
    """Bytes up to and with the last line feed."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - step)
            file.seek(start)
            place = file.read(end - start).rfind(b"\n")
            if place >= 0:
                return start + place + 1
            end = start
    return 0
