from __future__ import annotations

import gzip
import json

import pytest

from dflash_hf.bench.prompts import encode, load_prompts
from dflash_hf.errors import OptionsError

ROWS = [
    {"question": "How many?", "answer": "4"},
    {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f"},
    {"question_id": 81, "category": "writing", "turns": ["First turn", "Second turn"]},
    "only a string",
]


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.jsonl.gz"])
def test_load_prompts_knows_the_usual_files(tmp_path, name) -> None:
    text = "\n".join(json.dumps(row) for row in ROWS) + "\n\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    found = load_prompts(path)
    assert [prompt.text for prompt in found] == ["How many?", "def f():\n", "First turn", "only a string"]
    assert [prompt.name for prompt in found] == ["1", "HumanEval/0", "81", "4"]
    assert [prompt.group for prompt in found] == ["", "", "writing", ""]
    assert [prompt.name for prompt in load_prompts(path, limit=2)] == ["1", "HumanEval/0"]
    assert [prompt.name for prompt in load_prompts(path, limit=1, group="writing")] == ["81"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "line 1 is not JSON"),
        ('{"text": "x"}', "line 1 has no prompt.*question, prompt, turns"),
        ('{"prompt": " "}', "empty"),
        ("", "no prompts"),
    ],
)
def test_load_prompts_names_the_line_it_cannot_read(tmp_path, content, words) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(OptionsError, match=words):
        load_prompts(path)
    with pytest.raises(OptionsError, match="cannot read"):
        load_prompts(tmp_path / "gone.jsonl")


def test_encode_uses_the_chat_template_when_there_is_one() -> None:
    from tests.cli.conftest import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    bare = encode(tokenizer, "the river")
    assert tokenizer.decode(bare["input_ids"][0]) == "the river" and set(bare) == {"input_ids", "attention_mask"}
    tokenizer.chat_template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    tokenizer.chat_template += "{% if add_generation_prompt %}<me>{% endif %}"
    assert tokenizer.decode(encode(tokenizer, "hi")["input_ids"][0]) == "<user>hi<me>"
    assert tokenizer.decode(encode(tokenizer, "hi", chat=False)["input_ids"][0]) == "hi"


def test_encode_switches_thinking_where_the_template_can() -> None:
    from tests.cli.conftest import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    with pytest.raises(OptionsError, match="no chat template is used"):
        encode(tokenizer, "hi", thinking=False)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    with pytest.raises(OptionsError, match="has no such switch"):
        encode(tokenizer, "hi", thinking=True)
    tokenizer.chat_template += "{% if enable_thinking is defined and not enable_thinking %}<end>{% endif %}"
    said = {
        mode: tokenizer.decode(encode(tokenizer, "hi", thinking=mode)["input_ids"][0]) for mode in (None, True, False)
    }
    assert said == {None: "hi", True: "hi", False: "hi<end>"}
    with pytest.raises(OptionsError, match="no chat template is used"):
        encode(tokenizer, "hi", chat=False, thinking=False)
