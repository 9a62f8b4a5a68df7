"""``dflash-hf data prompts`` from files and from a tiny chat target."""

from __future__ import annotations

import gzip
import json
import math
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.cli.conftest import Files
from tests.training.chats import CHATML, chat_tokenizer

HELD_OUT = "How long is a walk along the river from the old mill to the town hall and back again?"
ROWS = [
    {"question": "How many apples are left when Ann eats two of her five?"},
    {"question": "how many apples are LEFT when Ann eats two of her five?"},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]},
    {"prompt": "Tell me: " + HELD_OUT},
    {"prompt": "   "},
    "Write a poem about the sea",
]


@pytest.fixture(scope="module")
def chat_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model that says letters at random and ends its turn after a dozen: its layers add nothing to ones."""
    folder = tmp_path_factory.mktemp("chat") / "tiny-chat"
    tokenizer = chat_tokenizer(CHATML)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    letters = [
        number for number in range(len(tokenizer)) if (text := tokenizer.decode([number])).isalpha() and text.isascii()
    ]
    logits = torch.full((len(tokenizer),), -30.0)
    logits[letters] = 0.0
    logits[tokenizer.convert_tokens_to_ids("<|im_end|>")] = math.log(len(letters) / 12)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.get_input_embeddings().weight.fill_(1.0)
        model.lm_head.weight.copy_(logits[:, None].expand(-1, 32) / 32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_data_prompts_from_files_tells_what_it_dropped(run, tmp_path: Path) -> None:
    source, out = tmp_path / "set.jsonl.gz", tmp_path / "new" / "prompts.jsonl"
    source.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
    held_out = tmp_path / "eval.jsonl"
    held_out.write_text(json.dumps({"turns": ["First", HELD_OUT]}))
    done = run("data", "prompts", out, source, "--exclude", held_out, "--min-chars", "3")
    assert done.exit_code == 0, done.output
    assert "2 evaluation prompts stay unseen" in done.stderr
    assert [line.split() for line in done.stdout.splitlines()[:2]] == [
        ["source", "rows", "prompts", "kept"], ["set.jsonl.gz", "6", "6", "2"],
    ]  # fmt: skip
    for words in ("1 duplicate", "1 empty", "1 held out for evaluation", "1 under 3 characters"):
        assert f"dropped: {words}" in done.stdout
    assert sorted(row["id"] for row in rows_of(out)) == ["set-1", "set-6"]
    assert str(tmp_path) not in out.read_text()
    exists = run("data", "prompts", out, source)
    assert exists.exit_code == 2 and "--force" in exists.stderr and len(rows_of(out)) == 2
    replaced = run("data", "prompts", out, source, "--force", "--limit", "1", "--json")
    told = json.loads(replaced.stdout)
    assert told["schema"] == "dflash-hf/prompts/1" and told["prompts"] == len(rows_of(out)) == 1
    assert told["sha256"] == sha256(out.read_bytes()).hexdigest() and told["over_limit"] == 3


def test_data_prompts_by_the_target_goes_on_after_a_kill(run, chat_target: Path, tmp_path: Path, monkeypatch) -> None:
    options = ["--from-target", "10", "--opening", "", "--opening", "Write", "--batch-size", "4"]
    options += ["--max-new-tokens", "40"]
    options += ["--target", chat_target, "--local-files-only", "--device-map", "cpu", "--seed", "5"]
    whole = run("data", "prompts", tmp_path / "whole.jsonl", *options)
    assert whole.exit_code == 0, whole.output
    found = rows_of(tmp_path / "whole.jsonl")
    assert len(found) == 10 and all(row["source"] == "target" for row in found)
    openings = [row["messages"][0]["content"].startswith("Write") for row in found]
    assert openings == [int(row["id"].rpartition("-")[2]) % 2 == 1 for row in found] and True in openings

    from dflash_hf.training.answers import answering

    calls, real = [], answering.answer_batch

    def dies(*args, **rest):
        calls.append(len(args[1]))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **rest)

    monkeypatch.setattr(answering, "answer_batch", dies)
    out = tmp_path / "prompts.jsonl"
    killed = run("data", "prompts", out, *options)
    assert killed.exit_code == 130 and not out.exists()
    other = run("data", "prompts", out, *options, "--seed", "6")
    assert other.exit_code == 2 and "another seed" in other.stderr
    monkeypatch.setattr(answering, "answer_batch", real)
    resumed = run("data", "prompts", out, *options)
    assert resumed.exit_code == 0 and "8 requests were written before" in resumed.stderr
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.jsonl", "whole.jsonl"]


def test_data_prompts_counts_tokens_in_the_chat_template(run, chat_target: Path, tmp_path: Path) -> None:
    source = tmp_path / "p.jsonl"
    source.write_text('"a walk"\n"a walk along the river and back again to where we were at first"\n')
    limit = len(chat_tokenizer(CHATML).apply_chat_template(
        [{"role": "user", "content": "a walk"}], add_generation_prompt=True, return_dict=True
    )["input_ids"])  # fmt: skip
    options = ["--target", chat_target, "--local-files-only"]
    done = run("data", "prompts", tmp_path / "a.jsonl", source, "--max-tokens", limit, *options)
    assert done.exit_code == 0 and f"dropped: 1 over {limit} tokens" in done.stdout, done.output
    none = run("data", "prompts", tmp_path / "b.jsonl", source, "--max-tokens", limit - 1, *options)
    assert none.exit_code == 1 and "no prompt is left of 2 rows" in none.stderr and not (tmp_path / "b.jsonl").exists()


def test_data_prompts_refuses_before_work(run, files: Files, tmp_path: Path) -> None:
    out, local = tmp_path / "p.jsonl", ["--target", files.target, "--local-files-only"]
    good = tmp_path / "good.jsonl"
    good.write_text('"a walk"\n')
    for arguments, code, words in (
        ([out], 2, "nothing to take prompts from"),
        ([out, tmp_path / "gone.jsonl", "--from-target", "2", *local], 2, "gone.jsonl: no such file"),
        ([out, files.target, "--from-target", "2", *local], 2, "no such file"),
        ([out, "hf:a/b/c/d"], 2, "is not hf:owner/name"),
        ([out, "hf:a/b", "--opening", "def "], 2, "--opening is for requests"),
        ([tmp_path, "hf:a/b"], 2, "is a folder; name a file"),
        ([out, good, "--min-chars", "5", "--max-chars", "4"], 2, "there are none"),
        ([out, "--from-target", "2", *local], 1, "has no chat template"),
        ([out, good, "--max-tokens", "9", *local], 1, "has no chat template"),
        ([out, "--from-target", "2", "--temperature", "0", *local], 2, "would be the same"),
        ([out, "--from-target", "2", "--target", tmp_path / "none", "--local-files-only"], 1, "cannot load the target"),
    ):
        refused = run("data", "prompts", *arguments)
        assert refused.exit_code == code and words in refused.stderr, refused.output
        assert refused.stdout == "" and not out.exists()
