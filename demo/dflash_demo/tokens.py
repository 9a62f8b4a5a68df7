"""Token ids to one text a token, while they come: joined, they are the text of all ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash_hf.streaming import Decode, SpanStream, split_text

__all__ = ["TokenTexts", "special_names", "texts_of_rejected", "texts_of_trace"]


class TokenTexts:
    """One text a token; a token that ends inside a character has none, the one that completes it has it all.

    >>> texts = TokenTexts(lambda ids: bytes(ids).decode(errors="replace"))
    >>> texts.push([72, 0xC3]), texts.push([0xA9, 33])
    (['H', ''], ['é', '!'])
    """

    def __init__(self, decode: Decode) -> None:
        self._stream = SpanStream(decode)

    def push(self, ids: Sequence[int]) -> list[str]:
        return [self._stream.push([token]) for token in ids]


def texts_of_trace(decode: Decode, ids: Sequence[int]) -> list[str]:
    """One text for each id of a finished answer, for any decoder: joined, they are ``decode(ids)``.

    Decodes every beginning of the text only where decoding as it comes would not do.
    """
    texts = TokenTexts(decode).push(ids)
    whole = decode(list(ids))
    if whole.startswith(joined := "".join(texts)) and ids:
        texts[-1] += whole[len(joined) :]  # bytes that never became a character
        return texts
    return split_text(decode, [[token] for token in ids])


def texts_of_rejected(decode: Decode, anchor: int, drafted: Sequence[int], accepted: int) -> list[str]:
    """The texts of a round's rejected tokens, as they would have read after the tokens before them."""
    return split_text(decode, [[anchor], *([token] for token in drafted)])[1 + accepted :]


def special_names(tokenizer: Any) -> dict[int, str]:
    """What stands for no text (ends of text and of turns), by id: decoders leave these tokens out."""
    added = {token: str(kind) for token, kind in tokenizer.added_tokens_decoder.items() if kind.special}
    return {**dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)), **added}
