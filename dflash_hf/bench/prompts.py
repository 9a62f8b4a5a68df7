"""Prompts from a file, and a prompt as a model's inputs.

In: JSON lines, plain or gzipped, as :mod:`dflash_hf.training.prompts.rows` reads them: ``question`` (GSM8K), ``prompt``
(HumanEval), ``turns`` (MT-bench, Spec-Bench), chats. The text of a row is what its user says first.
Out: :class:`Prompt` objects, in the file's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_hf.errors import OptionsError
from dflash_hf.training.prompts.rows import Row, conversation, file_rows

__all__ = ["Prompt", "encode", "load_prompts"]


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
    for row in file_rows(path):
        if limit is not None and len(found) >= limit:
            break
        prompt = _prompt(row)
        if group is None or prompt.group == group:
            found.append(prompt)
    if not found:
        raise OptionsError(f"{path} holds no prompts" + (f" of the group {group!r}" if group else ""))
    return found


def encode(tokenizer: Any, text: str, *, chat: bool = True, thinking: bool | None = None) -> Any:
    """Inputs for ``generate``: ``input_ids`` and ``attention_mask`` [1, S].

    Args:
        tokenizer: a transformers tokenizer.
        text: what the user says.
        chat: wrap it in the tokenizer's chat template, where it has one.
        thinking: the template's ``enable_thinking``; None leaves the choice to the template.

    Raises:
        OptionsError: ``thinking`` is given, and there is no template, or one without that switch.
    """
    template = getattr(tokenizer, "chat_template", None) if chat else None
    if thinking is not None and "enable_thinking" not in str(template or ""):
        what = "its chat template has no such switch" if template else "no chat template is used"
        raise OptionsError(f"thinking mode cannot be switched: {what}; leave the choice out")
    if template:
        turns = [{"role": "user", "content": text}]
        switch = {} if thinking is None else {"enable_thinking": thinking}
        return tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True, **switch
        )
    return tokenizer(text, return_tensors="pt", return_token_type_ids=False)


def _prompt(row: Row) -> Prompt:
    texts = [turn["content"] for turn in conversation(row) if turn["role"] == "user"]
    if not texts or not texts[0].strip():
        raise OptionsError(f"{row.where} has an empty prompt")
    group = row.value.get("category") if isinstance(row.value, dict) else None
    return Prompt(row.name, texts[0], str(group or ""))
