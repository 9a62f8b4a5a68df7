"""Prompts from a file, and a prompt as a model's inputs.

In: JSON lines, plain or gzipped. The text of a line is its ``question`` (GSM8K), ``prompt`` (HumanEval) or first of
its ``turns`` (MT-bench, Spec-Bench). Out: :class:`Prompt` objects, in the file's order.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_hf.errors import OptionsError

__all__ = ["Prompt", "encode", "load_prompts"]

_NAMES = ("task_id", "question_id", "id")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. ``group`` is the data set's own category where it has one."""

    name: str
    text: str
    group: str = ""


def load_prompts(path: str | Path, limit: int | None = None, group: str | None = None) -> list[Prompt]:
    """The first ``limit`` prompts of a JSON-lines file, of one ``group`` when given.

    Raises:
        OptionsError: the file cannot be read, a line has no prompt we know how to find, or nothing is left.
    """
    path = Path(path)
    found: list[Prompt] = []
    for number, line in _lines(path):
        if limit is not None and len(found) >= limit:
            break
        prompt = _prompt(path, number, line)
        if group is None or prompt.group == group:
            found.append(prompt)
    if not found:
        raise OptionsError(f"{path} holds no prompts" + (f" of the group {group!r}" if group else ""))
    return found


def encode(tokenizer: Any, text: str, *, chat: bool = True) -> Any:
    """Inputs for ``generate``: ``input_ids`` and ``attention_mask`` [1, S].

    Args:
        tokenizer: a transformers tokenizer.
        text: what the user says.
        chat: wrap it in the tokenizer's chat template, where it has one.
    """
    if chat and getattr(tokenizer, "chat_template", None):
        turns = [{"role": "user", "content": text}]
        return tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    return tokenizer(text, return_tensors="pt", return_token_type_ids=False)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"cannot read prompts from {path}: {error}") from error


def _prompt(path: Path, number: int, line: str) -> Prompt:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise OptionsError(f"{path}, line {number} is not JSON ({error}); prompts are JSON lines") from error
    text = _text(row) if isinstance(row, dict) else row
    if not isinstance(text, str) or not text.strip():
        raise OptionsError(
            f"{path}, line {number} has no prompt: expected a string, or an object with question, prompt or turns"
        )
    if not isinstance(row, dict):
        return Prompt(str(number), text)
    name = next((str(row[key]) for key in _NAMES if key in row), str(number))
    return Prompt(name, text, str(row.get("category") or ""))


def _text(row: dict[str, Any]) -> Any:
    turns = row.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    return row.get("question") or row.get("prompt") or first
