"""``dflash-hf data regenerate`` from a prompts file to a folder of answers, and what it says on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from transformers import AutoTokenizer, GenerationConfig

from dflash_hf.training.answers.answers import AnswerFolder, read_folders, shard_name
from dflash_hf.training.features.cache import FeatureCache, document_key
from tests.cli.conftest import Files

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def target(files: Files, tmp_path_factory) -> Path:
    """The tiny target, which repeats the last token of its prompt, with a chat template and "2" as its end of text."""
    folder = tmp_path_factory.mktemp("chat") / "target"
    shutil.copytree(files.target, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer("2")["input_ids"][0]).save_pretrained(folder)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [
        {"id": f"p{n}", "messages": [{"role": "user", "content": f"a walk {n}"}], "source": "test"} for n in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def answer(run, target: Path, prompts: Path, tmp_path: Path, monkeypatch):
    """Run the command on the prompts, with further options."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*options: object):
        fixed = ("--target", target, "--device-map", "cpu", "--max-new-tokens", "5", "--batch-size", "2")
        return run("data", "regenerate", prompts, tmp_path / "answers", *fixed, *options)

    return invoke


def test_answers_are_written_and_the_same_command_finds_nothing_to_do(answer, tmp_path: Path):
    made = answer("--json")
    assert made.exit_code == 0, made.output
    body = json.loads(made.stdout)
    assert body["schema"] == "dflash-hf/regenerate/1"
    assert (body["answers"], body["ended"], body["empty"], body["cut"], body["tokens"]) == (6, 1, 1, 5, 26)
    assert "6 answers, 0 done already, 6 to make in 3 batches" in made.stderr
    assert "6 of 6 answers" in made.stderr and "tokens/s" in made.stderr
    answers = AnswerFolder(tmp_path / "answers").read()
    assert [each.id for each in answers] == [f"p{n}" for n in range(6)]
    assert answers[2].empty and all(set(each.answer_ids) == {each.prompt_ids[-1]} for each in answers)
    assert AnswerFolder(tmp_path / "answers").description["target"] == "target", "no folders of this machine"
    again = answer()
    assert again.exit_code == 0 and "6 done already, 0 to make" in again.stderr
    assert "0 answers of 0 tokens" in again.stdout and "6 were there before" in again.stdout


def test_every_option_reaches_the_answers(answer, tmp_path: Path):
    made = answer(
        "--temperature", "0.5", "--temperature", "1.5", "--top-p", "0.9", "--answers-per-prompt", "2", "--seed", "7",
        "--limit", "3", "--threads", "1", "--dtype", "float32",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    answers = AnswerFolder(tmp_path / "answers").read()
    assert [each.id for each in answers] == ["p0/0", "p0/1", "p1/0", "p1/1", "p2/0", "p2/1"]
    assert {each.temperature for each in answers} == {0.5, 1.5}
    decoding = AnswerFolder(tmp_path / "answers").description["decoding"]
    assert (decoding["top_p"], decoding["seed"], decoding["answers_per_prompt"]) == (0.9, 7, 2)
    other = answer("--temperature", "0.5", "--limit", "3")
    assert other.exit_code == 1 and "decoding.seed" in other.stderr and "choose another folder" in other.stderr


def test_several_folders_share_a_feature_cache(answer, run, target: Path, prompts: Path, tmp_path: Path):
    """Also where they use the same ids for other prompts: training renames these, and finds their features."""
    cache = tmp_path / "cache"
    options = ("--features", "0,2", "--features-folder", cache)
    assert answer(*options).exit_code == 0
    others = tmp_path / "others.jsonl"
    others.write_text(prompts.read_text().replace("a walk", "a river"))
    fixed = ("--target", target, "--device-map", "cpu")
    made = run("data", "regenerate", others, tmp_path / "others", "--max-new-tokens", "5", *fixed, *options)
    assert made.exit_code == 0, made.output
    assert "6 answers" in made.stdout and f"{cache}: features of 6 answers kept\n" in made.stdout
    assert not (tmp_path / "answers" / "features").exists()
    folders = (tmp_path / "answers", tmp_path / "others")
    found, _ = read_folders(folders)
    assert len(found) == 12 and "p1@2" in {each.id for each in found}
    held = FeatureCache(cache)
    assert all(document_key([*each.prompt_ids, *each.answer_ids]) in held for each in found)
    filled = run("data", "features", *folders, "--layers", "0,2", "--folder", cache, *fixed, "--json")
    assert filled.exit_code == 0, filled.output
    report = json.loads(filled.stdout)
    assert report["made"] == 0 and report["held"] == report["documents"] >= 10, "p2 ends at once"


def test_what_features_cost_and_what_the_bound_left_out_is_said(answer, tmp_path: Path, monkeypatch):
    """Room for some of the answers: once none of a batch could be kept, nothing is tapped."""
    from dflash_hf.training.answers import regenerate as module

    tapped, plain = [], module.answer_batch

    def watched(*arguments, **options):
        tapped.append(options["recorder"] is not None)
        return plain(*arguments, **options)

    monkeypatch.setattr(module, "answer_batch", watched)
    made = answer("--features", "0,1", "--final", "--features-gb", "0.000006", "--json")
    assert made.exit_code == 0, made.output
    assert "features of layers 0, 1, 2: 192 bytes a token, at most 0 MB" in made.stderr
    assert "room for 31 tokens" in made.stderr
    kept = json.loads(made.stdout)["features"]
    assert kept["kept"] + kept["left_out"] == 6 and kept["kept"] == len(FeatureCache(tmp_path / "answers" / "features"))
    assert 0 < kept["kept"] < 6 and tapped == [True, True, False]
    said = answer("--features", "0,1", "--final", "--features-gb", "0.000006").stdout
    assert "features of 0 answers kept" in said and "beyond" not in said, "there was nothing left to answer"


def test_options_of_features_are_refused_without_features(answer, tmp_path: Path):
    for options in (("--final",), ("--features-folder", tmp_path / "cache")):
        refused = answer(*options)
        assert refused.exit_code == 2 and f"{options[0]} only with --features" in " ".join(refused.stderr.split())
    assert not (tmp_path / "answers").exists() and not (tmp_path / "cache").exists()


def test_shards_are_given_by_option_or_by_torchrun(answer, tmp_path: Path, monkeypatch):
    first = answer("--shard", "0/2")
    assert first.exit_code == 0 and "shard 0 of 2: 3 answers" in first.stderr
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    second = answer()
    assert second.exit_code == 0 and "shard 1 of 2: 3 answers" in second.stderr
    assert {path.name for path in (tmp_path / "answers").glob("answers-*")} == {shard_name(0, 2), shard_name(1, 2)}
    assert len(AnswerFolder(tmp_path / "answers").read()) == 6
    for wrong in ("2/2", "x", "0/0"):
        refused = answer("--shard", wrong)
        assert refused.exit_code == 2 and f"not '{wrong}'" in refused.stderr


def test_long_prompts_are_named_and_left_out_when_asked(answer, prompts: Path, tmp_path: Path):
    with prompts.open("a") as file:
        file.write(
            json.dumps({"id": "epic", "messages": [{"role": "user", "content": "z" * 300}], "source": "t"}) + "\n"
        )
    refused = answer()
    assert refused.exit_code == 1 and "7 (epic, 300 tokens)" in refused.stderr and "--skip-long" in refused.stderr
    assert not (tmp_path / "answers").exists()
    made = answer("--skip-long")
    assert made.exit_code == 0 and "1 too long and left out" in made.stderr
    assert len(AnswerFolder(tmp_path / "answers").read()) == 6


def test_sigterm_says_how_to_go_on_and_leaves_whole_batches(answer, tmp_path: Path, monkeypatch):
    from dflash_hf.training.answers import regenerate as module

    plain, calls = module.answer_batch, []

    def terminated(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(*arguments, **options)

    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(module, "answer_batch", terminated)
    stopped = answer()
    assert stopped.exit_code == 130 and "the same command goes on from there" in stopped.stderr
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(AnswerFolder(tmp_path / "answers").read()) == 2
    monkeypatch.undo()
    assert "2 done already, 4 to make" in answer().stderr
    assert len(AnswerFolder(tmp_path / "answers").read()) == 6


def test_a_target_without_a_chat_template_or_that_is_not_there_is_said_in_a_line(
    run, files: Files, prompts: Path, tmp_path: Path
):
    bare = run("data", "regenerate", prompts, tmp_path / "a", "--target", files.target)
    assert bare.exit_code == 1 and "no chat template" in bare.stderr
    missing = run("data", "regenerate", prompts, tmp_path / "a", "--target", tmp_path / "nowhere")
    assert missing.exit_code == 1 and "cannot load the target" in missing.stderr
    assert not (tmp_path / "a").exists()
