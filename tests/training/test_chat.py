from __future__ import annotations

import pytest

from dflash_hf.errors import TrainingError
from dflash_hf.training.prompts.chat import chat_fingerprint, opening_ids, prompt_ids, turn_end, user_turn_ids
from tests.training.chats import CHATML, ESCAPING, LLAMA, MISTRAL, QWEN, chat_tokenizer

HEADERS = {
    CHATML: "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\n",
    QWEN: "<|im_start|>user\n",
    LLAMA: "<|begin|><|head|>user<|body|>\n\n",
    MISTRAL: "<s>[INST]",
}
WORDS = ["Write a poem", "def f():", "7 times 6?", "  blanks first", "a walk along", "(a) or (b)", "Ärger", "你好"]


@pytest.mark.parametrize("template", HEADERS, ids=["chatml", "qwen", "llama", "mistral"])
def test_user_turn_ids_is_how_every_prompt_begins(template: str) -> None:
    tokenizer = chat_tokenizer(template)
    header = user_turn_ids(tokenizer)
    assert tokenizer.decode(header) == HEADERS[template]
    for words in WORDS:
        assert prompt_ids(tokenizer, [{"role": "user", "content": words}])[: len(header)] == header


@pytest.mark.parametrize("template", HEADERS, ids=["chatml", "qwen", "llama", "mistral"])
@pytest.mark.parametrize(
    ("opening", "read", "words"),
    [
        ("a walk along", "a walk along", [" the river", ", then", "\n"]),
        ("def ", "def", ["add(a)", "b", "(c"]),  # the blank belongs to the next word
        ("def add(a", "def add(a", [", b)", " = 2)"]),
    ],
)
def test_opening_ids_is_how_every_prompt_with_this_opening_begins(template, opening, read, words) -> None:
    tokenizer = chat_tokenizer(template)
    ids = opening_ids(tokenizer, opening)
    assert tokenizer.decode(ids).endswith(read) and ids[: len(user_turn_ids(tokenizer))] == user_turn_ids(tokenizer)
    for word in words:
        assert prompt_ids(tokenizer, [{"role": "user", "content": opening + word}])[: len(ids)] == ids


def test_opening_ids_without_an_opening_is_the_header() -> None:
    tokenizer = chat_tokenizer(CHATML)
    assert opening_ids(tokenizer, "") == user_turn_ids(tokenizer)
    with pytest.raises(TrainingError, match="merges with what the chat template writes before it"):
        opening_ids(tokenizer, " def")


def test_user_turn_ids_refuses_a_template_it_cannot_continue() -> None:
    with pytest.raises(TrainingError, match="does not pass on the user's words .* from a file"):
        user_turn_ids(chat_tokenizer(ESCAPING))
    with pytest.raises(TrainingError, match="has no chat template.*instruct"):
        user_turn_ids(chat_tokenizer(None))
    with pytest.raises(TrainingError, match="writes nothing before"):
        user_turn_ids(chat_tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}<|eot|>"))


@pytest.mark.parametrize(
    ("template", "mark", "text"),
    [(CHATML, "<|im_end|>", ""), (LLAMA, "<|eot|>", ""), (MISTRAL, None, "[/INST]")],
    ids=["chatml", "llama", "mistral"],
)
def test_turn_end_is_a_special_id_or_a_text(template: str, mark: str | None, text: str) -> None:
    tokenizer = chat_tokenizer(template)
    assert turn_end(tokenizer) == (mark and tokenizer.convert_tokens_to_ids(mark), text)


def test_prompt_ids_sets_the_thinking_switch_where_there_is_one() -> None:
    asked = [{"role": "user", "content": "a walk"}]
    tokenizer = chat_tokenizer(QWEN)
    assert tokenizer.decode(prompt_ids(tokenizer, asked, thinking=False)).endswith("<think>\n\n</think>\n\n")
    assert tokenizer.decode(prompt_ids(tokenizer, asked, thinking=True)).endswith("assistant\n")
    with pytest.raises(TrainingError, match="no thinking switch"):
        prompt_ids(chat_tokenizer(CHATML), asked, thinking=False)


def test_prompt_ids_says_what_the_template_refuses() -> None:
    tokenizer = chat_tokenizer(MISTRAL)
    with pytest.raises(TrainingError, match="refuses these turns: no system turns"):
        prompt_ids(tokenizer, [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    with pytest.raises(TrainingError, match="has no chat template"):
        prompt_ids(chat_tokenizer(None), [{"role": "user", "content": "b"}])


def test_chat_fingerprint_tells_templates_and_thinking_apart() -> None:
    prints = [chat_fingerprint(chat_tokenizer(template)) for template in (CHATML, CHATML, QWEN)]
    assert prints[0] == prints[1] != prints[2] and len(prints[0]["template_sha256"]) == 64
    assert chat_fingerprint(chat_tokenizer(QWEN), thinking=False) == {**prints[2], "thinking": False}
