"""Rows of prompt files, whatever public sets call their fields, as turns of a conversation.

In: JSON lines (plain or gzipped) or one JSON array. A row is a string, or an object with ``question`` (GSM8K),
``prompt`` (HumanEval), ``turns`` (MT-bench, Spec-Bench), ``messages`` (role/content) or ``conversations`` (ShareGPT's
from/value).
Out: :class:`Row`, and the conversation in it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from dflash_hf.errors import OptionsError

__all__ = ["FIELDS", "Message", "Row", "conversation", "file_rows", "is_own", "numbered", "user_prompts"]

FIELDS = ("question", "prompt", "turns", "messages", "conversations")
_NAMES = ("task_id", "question_id", "id")
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "developer": "system"}


class Message(TypedDict):
    """One turn. ``role`` is "system", "user" or "assistant" in a prompt."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source. ``where`` is for messages ("file, line 3"), ``name`` the set's own id or its number."""

    where: str
    name: str
    value: Any


def file_rows(path: str | Path) -> Iterator[Row]:
    """Rows of a JSON-lines file, in order; of a file that is one JSON array, its items.

    Raises:
        OptionsError: the file cannot be read, or a line is not JSON.
    """
    path = Path(path)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:
            is_array = file.read(64).lstrip().startswith("[")
            file.seek(0)
            if is_array:
                yield from numbered(f"{path}, item", _parsed(file.read(), f"{path}, an array,"))
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield _row(where, number, _parsed(line, where))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise OptionsError(f"cannot read prompts from {path}: {error}") from error


def numbered(where: str, values: Iterable[Any]) -> Iterator[Row]:
    """Values as rows called "<where> 1", "<where> 2" ..."""
    return (_row(f"{where} {number}", number, value) for number, value in enumerate(values, start=1))


def _row(where: str, number: int, value: Any) -> Row:
    names = [str(value[key]) for key in _NAMES if value.get(key) is not None] if isinstance(value, Mapping) else []
    return Row(where, names[0] if names else str(number), value)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionsError(f"{where} is not JSON ({error}); prompts are JSON lines") from error


def is_own(value: Any) -> bool:
    """Whether a row was written by this project: its messages are a prompt as they stand."""
    return isinstance(value, Mapping) and set(value) == {"id", "messages", "source"}


def conversation(row: Row, column: str | None = None) -> list[Message]:
    """All turns of a row, with the roles' usual names. A plain text is one user turn, a list of texts several.

    Args:
        row: what :func:`file_rows` gives.
        column: the field that holds the prompt; None looks for :data:`FIELDS`, the first that is not empty.

    Raises:
        OptionsError: the row has no such field, or what is in it is neither text nor turns.
    """
    value: Any = row.value if isinstance(row.value, str) else _field(row, column)
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, Sequence) and value and all(isinstance(turn, str) for turn in value):
        return [{"role": "user", "content": turn} for turn in value]
    if isinstance(value, Sequence) and value and all(isinstance(turn, Mapping) for turn in value):
        return [_message(row, turn) for turn in value]
    raise OptionsError(f"{row.where} has a prompt that is neither a text nor a list of turns, but {_shown(value)}")


def _field(row: Row, column: str | None) -> Any:
    known = [column] if column else list(FIELDS)
    fields = sorted(map(str, row.value)) if isinstance(row.value, Mapping) else None
    expected = "expected a string, or an object with question, prompt, turns, messages or conversations"
    if fields is None:
        raise OptionsError(f"{row.where} has no prompt but {_shown(row.value)}: {expected}")
    present = [name for name in known if row.value.get(name) is not None]
    if not present and column:
        raise OptionsError(f"{row.where} has no field {column!r}; it has {', '.join(fields) or 'none'}")
    if not present:
        has = (
            f"it has {', '.join(fields)}; name the right one with #FIELD after the source" if fields else "it is empty"
        )
        raise OptionsError(f"{row.where} has no prompt: {expected}, but {has}")
    return next((row.value[name] for name in present if row.value[name]), row.value[present[0]]) or ""


def _message(row: Row, turn: Mapping[str, Any]) -> Message:
    role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if not isinstance(role, str) or ("content" not in turn and "value" not in turn):
        raise OptionsError(
            f"{row.where} has a turn with the fields {', '.join(map(str, turn)) or 'none'}; "
            "a turn has role and content, or from and value"
        )
    role = _ROLES.get(role.lower(), role.lower())
    if isinstance(content, Sequence) and not isinstance(content, str):
        other = [part.get("type") for part in content if not (isinstance(part, Mapping) and "text" in part)]
        if other:
            return {"role": f"{role} with {other[0]}", "content": ""}  # not a turn of text: the conversation ends here
        content = "".join(str(part["text"]) for part in content)
    if content is not None and not isinstance(content, str):
        raise OptionsError(f"{row.where} has a turn whose content is {_shown(content)}, not a text")
    return {"role": role, "content": content or ""}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def user_prompts(messages: Sequence[Message], *, every: bool = False) -> list[tuple[Message, ...]]:
    """The user turns of a conversation, each with the turns before it; only the first unless ``every``.

    Assistant turns before the first user turn are left out. A conversation counts up to where user and assistant stop
    taking turns: tools, two user turns in a row (as in MT-bench, which has no answers), an empty answer.

    >>> said = [("user", "Hi"), ("assistant", "Yes?"), ("user", "Why?"), ("user", "Tell me")]
    >>> found = user_prompts([{"role": role, "content": text} for role, text in said], every=True)
    >>> [prompt[-1]["content"] for prompt in found], len(found[1])
    (['Hi', 'Why?'], 3)
    """
    said: list[Message] = []
    found: list[tuple[Message, ...]] = []
    for message in messages:
        role, asked = message["role"], bool(said) and said[-1]["role"] == "user"
        if not found and role == "system":
            said.append(message)
        elif not found and role == "assistant":
            continue
        elif role == ("assistant" if asked else "user") and (message["content"].strip() or not asked):
            said.append(message)
            if role == "user":
                found.append(tuple(said))
        else:
            break
        if found and not every:
            break
    return found
