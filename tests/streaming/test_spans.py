"""Spans from ids: their concatenation is the decoded text, whatever the split and whatever the bytes."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dflash_hf.streaming import SpanStream, decoder_of, split_text

TEXT = "naïve café — 日本語の文 🙂👩‍👩‍👧 def f(x):\n\treturn x  # ok   \n"


def byte_level() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2 and Gemma have it: words with a leading marker, and single bytes for all else."""
    words = ["▁", "▁a", "▁the", "cat", "s", ".", "▁sat"]
    vocab = {token: index for index, token in enumerate(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *words])}
    inner = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def partition(ids: list[int], chance: random.Random) -> list[list[int]]:
    parts, place = [], 0
    while place < len(ids):
        width = chance.randint(0, 5)
        parts.append(ids[place : place + width])
        place += width
    return parts


def ids_of(kind: str, tokenizer, chance: random.Random) -> list[int]:
    if kind == "text":
        return tokenizer("".join(chance.choices(TEXT, k=60)))["input_ids"]
    return [chance.randrange(len(tokenizer)) for _ in range(60)]  # mostly invalid bytes


@pytest.mark.parametrize("kind", ["text", "noise"])
def test_span_stream_concatenates_to_decode_for_any_split(kind) -> None:
    tokenizer = byte_level()
    decode = decoder_of(tokenizer)
    for seed in range(150):
        chance = random.Random(seed)
        ids = ids_of(kind, tokenizer, chance)
        stream = SpanStream(decode)
        spans = [stream.push(part) for part in partition(ids, chance)]
        spans.append(stream.finish())
        assert "".join(spans) == decode(ids) and stream.exact, seed


def test_span_stream_keeps_spaces_of_a_word_marker_tokenizer() -> None:
    tokenizer = byte_fallback()
    decode = decoder_of(tokenizer)
    words = [tokenizer.convert_tokens_to_ids(token) for token in ("▁the", "cat", "s", "▁sat", ".", "▁a", "▁", "cat")]
    e_acute = [tokenizer.convert_tokens_to_ids(token) for token in ("<0xC3>", "<0xA9>")]
    for seed in range(150):
        chance = random.Random(seed)
        pieces = [[chance.choice(words)] if chance.random() < 0.7 else e_acute for _ in range(25)]
        ids = [token for piece in pieces for token in piece]
        stream = SpanStream(decode)
        spans = [stream.push(part) for part in partition(ids, chance)]
        assert "".join(spans) + stream.finish() == decode(ids) and stream.exact, seed


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_split_text_concatenates_to_decode_even_where_a_decoder_rewrites(make) -> None:
    tokenizer = make()
    decode = decoder_of(tokenizer)
    for seed in range(60):
        chance = random.Random(seed)
        parts = partition([chance.randrange(len(tokenizer)) for _ in range(40)], chance)
        spans = split_text(decode, parts)
        assert len(spans) == len(parts)
        assert "".join(spans) == decode([token for part in parts for token in part])


def test_a_character_split_over_two_rounds_belongs_to_the_later_one() -> None:
    tokenizer = byte_level()
    decode = decoder_of(tokenizer)
    smile = [
        tokenizer.convert_tokens_to_ids(piece) for piece in pre_tokenizers.ByteLevel(False).pre_tokenize_str("🙂")[0][0]
    ]
    assert len(smile) == 4
    stream = SpanStream(decode)
    assert [stream.push(smile[:3]), stream.push(smile[3:]), stream.finish()] == ["", "🙂", ""]
    assert split_text(decode, [smile[:1], smile[1:], []]) == ["", "🙂", ""]


def test_span_stream_says_when_a_decoder_rewrote_what_was_shown() -> None:
    stream = SpanStream(lambda ids: "ab" if len(ids) == 1 else "xyz")
    stream.push([1])
    stream.push([2])
    stream.finish()
    assert not stream.exact


def test_span_stream_decodes_only_the_last_rounds_again() -> None:
    lengths: list[int] = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return "".join(map(chr, ids))

    stream = SpanStream(decode)
    for _ in range(200):
        stream.push([97, 98, 99])
    assert max(lengths) <= 9
