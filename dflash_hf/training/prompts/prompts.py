"""Prompts: what a target is asked so that its answers can train a drafter.

On disk JSON lines ``{"id": ..., "messages": [{"role": "user", "content": ...}], "source": ...}``. Files of other
layouts (:mod:`dflash_hf.training.prompts.rows`) are read as well: the first user turn of each row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_hf.errors import OptionsError, TrainingError
from dflash_hf.training.prompts.rows import Message, Row, conversation, file_rows, is_own, user_prompts

__all__ = ["Message", "Prompt", "distinct", "prompts_of", "read_prompts", "write_prompts"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to the target.

    Args:
        id: unique in its file; of self-written ones ``"self-<seed>-<n>"``. Never holds a slash.
        messages: end with a user turn; earlier turns of a transcript stand before it.
        source: file name, data set name, or ``"target"``.
    """

    id: str
    messages: tuple[Message, ...]
    source: str

    @property
    def text(self) -> str:
        """What the user says last."""
        return self.messages[-1]["content"]


def prompts_of(row: Row, label: str, *, every: bool = False, column: str | None = None) -> list[Prompt]:
    """The prompts of a row: its first user turn, or with ``every`` each one; a row of our own as it stands.

    Args:
        row: from a file or a data set.
        label: file or data set name; ids begin with its first part.
        every: each user turn of a transcript, with the turns before it.
        column: field with the prompt.

    Raises:
        OptionsError: the row's layout is not one we know.
    """
    messages = conversation(row, column)
    if is_own(row.value):
        if messages[-1]["role"] != "user":
            raise OptionsError(f"{row.where}: the messages of a prompt end with a user turn")
        return [Prompt(row.name.replace("/", "-"), tuple(messages), str(row.value["source"]))]
    stem = label.rsplit("/", 1)[-1].split(".", 1)[0]
    name = f"{stem}-{row.name}".replace("/", "-")
    found = user_prompts(messages, every=every)
    return [Prompt(name if turn == 1 else f"{name}-turn{turn}", said, label) for turn, said in enumerate(found, 1)]


def read_prompts(path: str | Path) -> list[Prompt]:
    """The prompts of a file, in its order, with distinct ids.

    Raises:
        OptionsError: the file cannot be read, a line has no prompt that we can find or an empty one, or there is none.
    """
    prompts: list[Prompt] = []
    for row in file_rows(path):
        found = prompts_of(row, Path(path).name)
        if not found or not found[0].text.strip():
            raise OptionsError(f"{row.where} has an empty prompt; `dflash-hf data prompts` leaves such rows out")
        prompts += found
    if not prompts:
        raise OptionsError(f"{path} holds no prompts; make some with `dflash-hf data prompts`")
    return distinct(prompts)


def write_prompts(path: str | Path, prompts: Iterable[Prompt]) -> None:
    """Write a prompts file, whole or not at all; a file that is there is replaced.

    Raises:
        TrainingError: the disk is full or the folder cannot be written.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            for prompt in prompts:
                row = {"id": prompt.id, "messages": list(prompt.messages), "source": prompt.source}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise TrainingError(
            f"cannot write {path}: {error.strerror or error}; nothing of it was written, what was there before is kept"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def distinct(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The same prompts; a second one of an id gets ``.2`` behind it, and so on, in order."""
    taken: set[str] = set()
    found = []
    for prompt in prompts:
        name, copies = prompt.id, 1
        while name in taken:
            copies += 1
            name = f"{prompt.id}.{copies}"
        taken.add(name)
        found.append(prompt if name == prompt.id else replace(prompt, id=name))
    return found
