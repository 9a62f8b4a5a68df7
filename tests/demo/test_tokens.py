"""Spans come from token ids: joined they are the text, and no character is torn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dflash_demo.tokens import TokenTexts, special_names, texts_of_rejected, texts_of_trace
from dflash_hf.streaming import decoder_of
from tests.cli.conftest import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
DECODE = decoder_of(TOKENIZER)
IDS = st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=24)


def as_bytes(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


@given(text=st.text(max_size=24), data=st.data())
def test_texts_of_any_text_join_to_it_in_any_rounds(text: str, data: st.DataObject) -> None:
    ids = TOKENIZER(text)["input_ids"]
    texts, place, found = TokenTexts(DECODE), 0, []
    while place < len(ids):
        step = data.draw(st.integers(1, 6))
        found += texts.push(ids[place : place + step])
        place += step
    assert "".join(found) == DECODE(ids)
    assert len(found) == len(ids)


@given(IDS)
def test_texts_of_a_trace_join_to_the_decoded_answer_byte_for_byte(ids: list[int]) -> None:
    found = texts_of_trace(DECODE, ids)
    assert "".join(found) == DECODE(ids)
    assert len(found) == len(ids)


@given(st.lists(st.integers(0, 255), max_size=16))
def test_texts_of_arbitrary_bytes_join_to_the_decoded_answer(ids: list[int]) -> None:
    assert "".join(texts_of_trace(as_bytes, ids)) == as_bytes(ids)


def test_a_split_character_belongs_to_the_token_that_completes_it() -> None:
    euro = list("€".encode())
    assert TokenTexts(as_bytes).push([65, *euro]) == ["A", "", "", "€"]


def test_rejected_tokens_read_as_they_would_have_after_the_others() -> None:
    def words(ids: list[int]) -> str:  # a decoder that drops a leading space, as sentencepiece does
        return " ".join("abcdefgh"[token] for token in ids)

    assert texts_of_rejected(words, 0, [1, 2, 3], accepted=1) == [" c", " d"]
    assert texts_of_rejected(words, 0, [1, 2, 3], accepted=3) == []


def test_what_a_decoder_leaves_out_has_a_name() -> None:
    tokenizer = tiny_tokenizer()
    assert special_names(tokenizer) == {}
    tokenizer.add_special_tokens({"eos_token": "<|end|>", "additional_special_tokens": ["<|turn|>"]})
    tokenizer.add_tokens(["<think>"])
    found = special_names(tokenizer)
    assert sorted(found.values()) == ["<|end|>", "<|turn|>"]
    assert all(decoder_of(tokenizer)([token]) == "" for token in found)
