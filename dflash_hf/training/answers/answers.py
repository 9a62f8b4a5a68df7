"""Answers on disk: one JSON object a line in the ``answers-*.jsonl`` of a folder, described by its ``answers.json``.

``regenerate`` writes such a folder, a file a shard; here it is read. A line without its line feed was being written
when the process was killed: it counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dflash_hf.errors import TrainingError

__all__ = ["DESCRIPTION", "SCHEMA", "Answer", "AnswerFolder", "read_folders", "shard_name"]

DESCRIPTION, SCHEMA = "answers.json", "dflash-hf/answers/1"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the target said to one prompt."""

    id: str  # the prompt's; "<id>/<n>" when a prompt is answered several times
    prompt_ids: list[int]  # chat template applied
    answer_ids: list[int]  # at least one; the last is an end-of-text id exactly when `ended`
    ended: bool  # False: cut at the limit
    source: str  # the prompt's
    temperature: float
    seed: int  # of what was drawn; 0 for greedy

    @property
    def empty(self) -> bool:
        """Whether the target ended at once: nothing to train on."""
        return self.ended and len(self.answer_ids) == 1

    def to_line(self, text: str) -> str:
        """The line of the file, line feed included; ``text`` is the answer for people to read."""
        return json.dumps({**asdict(self), "text": text}, ensure_ascii=False) + "\n"


_TYPES: dict[str, tuple[type, ...]] = {
    "id": (str,), "prompt_ids": (list,), "answer_ids": (list,), "ended": (bool,), "source": (str,),
    "temperature": (int, float), "seed": (int,),
}  # fmt: skip


class AnswerFolder:
    """A folder that ``dflash-hf data regenerate`` wrote, or is writing.

    Args:
        path: need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def description(self) -> dict[str, Any]:
        """How the answers were made (``answers.json``).

        Raises:
            TrainingError: it is missing, damaged, or of another schema.
        """
        file = self.path / DESCRIPTION
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TrainingError(
                f"{self.path} has no {DESCRIPTION}; make answers with `dflash-hf data regenerate`"
            ) from None
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"{file} cannot be read ({error}); put the file back, or make the answers anew"
            ) from error
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            schema = found.get("schema") if isinstance(found, dict) else type(found).__name__
            raise TrainingError(f"{file} is of schema {schema!r}, this version reads {SCHEMA!r}; make the answers anew")
        return found

    def read(self) -> list[Answer]:
        """All answers, by id.

        Raises:
            TrainingError: there are none, a line cannot be read, or an id is there twice.
        """
        found: dict[str, Answer] = {}
        for where, answer in self._answers():
            if answer.id in found:
                raise TrainingError(
                    f"{where}: the answer {answer.id!r} is in {self.path} twice; a file of another run was copied into "
                    "it: take it out again"
                )
            found[answer.id] = answer
        if not found:
            raise TrainingError(f"{self.path} holds no answers; make some with `dflash-hf data regenerate`")
        return [found[name] for name in sorted(found)]

    def ids(self) -> set[str]:
        """The answers that need not be made again, whichever process wrote them.

        Raises:
            TrainingError: a line cannot be read.
        """
        return {answer.id for _, answer in self._answers()}

    def _answers(self) -> Iterator[tuple[str, Answer]]:
        for path in sorted(self.path.glob("answers-*.jsonl")):
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.endswith(b"\n"):
                        where = f"{path}, line {number}"
                        yield where, _answer(line, where)


def read_folders(paths: Sequence[str | Path]) -> tuple[list[Answer], int]:
    """The answers of several folders, and how many of them were left out because they are there already.

    Folders may use the same ids for other answers: those of the n-th folder then get ``@n`` behind their id.
    """
    found: dict[str, Answer] = {}
    twice = 0
    for number, path in enumerate(paths, start=1):
        for answer in AnswerFolder(path).read():
            earlier = found.get(answer.id)
            if earlier is None:
                found[answer.id] = answer
            elif (earlier.prompt_ids, earlier.answer_ids) == (answer.prompt_ids, answer.answer_ids):
                twice += 1
            else:
                found[f"{answer.id}@{number}"] = replace(answer, id=f"{answer.id}@{number}")
    return list(found.values()), twice


def shard_name(number: int, count: int) -> str:
    """The file of shard ``number`` (from 0) of ``count``.

    >>> shard_name(1, 4)
    'answers-00001-of-00004.jsonl'
    """
    return f"answers-{number:05d}-of-{count:05d}.jsonl"


def _answer(line: bytes, where: str) -> Answer:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TrainingError(
            f"{where} is not JSON ({error}); take the line out, and its answer is made again"
        ) from error
    wrong = [
        name
        for name, types in _TYPES.items()
        if not isinstance(row, dict) or type(row.get(name)) not in types or row[name] == []
    ]
    if wrong:
        raise TrainingError(f"{where} is no answer: {', '.join(wrong)} missing or of the wrong kind")
    return Answer(**{field.name: row[field.name] for field in fields(Answer)})
