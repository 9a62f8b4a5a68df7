"""A tokenizer's chat template: prompts as token ids, the header of a user's turn, the thinking switch.

In: a transformers tokenizer and messages. Out: lists of token ids, as the target would read them in a chat.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from dflash_hf.errors import TrainingError
from dflash_hf.training.prompts.rows import Message

__all__ = ["chat_fingerprint", "chat_template", "opening_ids", "prompt_ids", "special_ids", "turn_end", "user_turn_ids"]

_PROBE = 'dflash <&> "probe"'  # a template that escapes or shortens what the user says would change it
# Ways to go on that share no first letter; words that any vocabulary has as one id with the blank before it.
_FIRST = ("the", "a", "Write", "How", "7", "(")
_NEXT = (" the", ", a", "\nHow", "(7")  # the same after a word


def chat_template(tokenizer: Any) -> str:
    """The template's text.

    Raises:
        TrainingError: the tokenizer has none.
    """
    if not getattr(tokenizer, "chat_template", None):
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise TrainingError(
            f"the tokenizer of {name} has no chat template, so nobody can tell how it is asked; use the chat "
            "(instruct) version of the model, or put its template into tokenizer.chat_template and save the tokenizer"
        )
    template: str = tokenizer.get_chat_template()
    return template


def prompt_ids(tokenizer: Any, messages: Sequence[Message], *, thinking: bool | None = None) -> list[int]:
    """Ids [S] of a prompt: the messages in the chat template, up to where the answer begins.

    Args:
        tokenizer: of the target.
        messages: turns; the last is the user's.
        thinking: on or off for templates that have the switch (``enable_thinking`` or ``thinking``); None leaves the
            template's default.

    Raises:
        TrainingError: there is no chat template, it refuses these turns, or it has no thinking switch to set.
    """
    if thinking is not None and not re.search(r"\b(enable_)?thinking\b", chat_template(tokenizer)):
        raise TrainingError("the chat template has no thinking switch; leave thinking unset")
    options = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
    return _ids(tokenizer, messages, **options)


def chat_fingerprint(tokenizer: Any, thinking: bool | None = None) -> dict[str, Any]:
    """What has to be the same for the same messages to become the same ids: for provenance.

    Raises:
        TrainingError: there is no chat template.
    """
    template = chat_template(tokenizer)
    return {"template_sha256": hashlib.sha256(template.encode()).hexdigest(), "thinking": thinking}


def user_turn_ids(tokenizer: Any) -> list[int]:
    """Ids of everything the template writes before the user's own words, its default system text included.

    These are the ids that stay the same whatever the user says first. A blank that would merge with the first word
    ("[INST] " of Mistral) is left to whoever goes on.

    Raises:
        TrainingError: there is no chat template, or it changes the user's words.
    """
    rendered = _rendered(tokenizer, [{"role": "user", "content": _PROBE}])
    if rendered.count(_PROBE) != 1:
        raise TrainingError(
            f"the chat template does not pass on the user's words as they are ({_PROBE!r} came out as {rendered!r}), "
            "so its user turn cannot be continued; take prompts from a file instead"
        )
    header = _shared_start([_ids(tokenizer, _asked(word)) for word in _FIRST])
    if not header:
        raise TrainingError(
            "the chat template writes nothing before the user's words, so the target would not know that it writes a "
            "request; take prompts from a file instead"
        )
    return header


def opening_ids(tokenizer: Any, opening: str) -> list[int]:
    """The user turn's header and the words a request begins with; what would merge with the next word is left out.

    "def " ends with the id of "def": the blank belongs to the word after it.

    Raises:
        TrainingError: as :func:`user_turn_ids`; or the opening begins with white space or merges with the header.
    """
    header = user_turn_ids(tokenizer)
    if not opening:
        return header
    follow = _FIRST if opening[-1].isspace() else _NEXT
    ids = _shared_start([_ids(tokenizer, _asked(opening + words)) for words in follow])
    if opening[0].isspace() or ids[: len(header)] != header:
        raise TrainingError(
            f"the opening {opening!r} merges with what the chat template writes before it; choose another"
        )
    return ids


def turn_end(tokenizer: Any) -> tuple[int | None, str]:
    """How the template ends a user's turn: the special id that follows the user's words, or else the text that does.

    ChatML has an id (``<|im_end|>``), Vicuna a text (``ASSISTANT:``).

    Raises:
        TrainingError: there is no chat template.
    """
    first, second = (_ids(tokenizer, _asked(word)) for word in _FIRST[:2])
    after = _shared_start([first[::-1], second[::-1]])[::-1]
    if after and after[0] in special_ids(tokenizer):
        return after[0], ""
    return None, _rendered(tokenizer, _asked(_PROBE)).rpartition(_PROBE)[2].strip()


def special_ids(tokenizer: Any) -> set[int]:
    """Ids that are marks and not text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return set(tokenizer.all_special_ids) | {number for number, token in added.items() if token.special}


def _asked(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def _rendered(tokenizer: Any, messages: Sequence[Message]) -> str:
    return str(_applied(tokenizer, messages, tokenize=False))


def _ids(tokenizer: Any, messages: Sequence[Message], **options: Any) -> list[int]:
    return list(_applied(tokenizer, messages, tokenize=True, return_dict=True, **options)["input_ids"])


def _applied(tokenizer: Any, messages: Sequence[Message], **options: Any) -> Any:
    chat_template(tokenizer)
    try:
        return tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, **options)
    except TemplateError as error:  # how a template says that it has no system turn, for example
        raise TrainingError(f"the chat template refuses these turns: {error}") from error


def _shared_start(sequences: Sequence[list[int]]) -> list[int]:
    """The longest start that all have.

    >>> _shared_start([[1, 2, 3], [1, 2, 4]])
    [1, 2]
    """
    shared = []
    for column in zip(*sequences, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return shared
