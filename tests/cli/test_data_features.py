"""``data features``: says what it costs, fills the cache, goes on, and refuses in a line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from dflash_hf.target.fingerprint import weights_fingerprint
from dflash_hf.target.view import view_target
from dflash_hf.training.answers.answers import AnswerFolder
from dflash_hf.training.documents import documents_of
from dflash_hf.training.features.cache import Cached
from dflash_hf.training.features.features import OnTheFly
from tests.cli.conftest import Files


@pytest.fixture(scope="module")
def weights(files: Files) -> str:
    return weights_fingerprint(AutoModelForCausalLM.from_pretrained(files.target))


@pytest.fixture
def answers(tmp_path: Path, weights: str) -> Path:
    folder = tmp_path / "answers"
    folder.mkdir()
    rows = [
        {
            "id": f"p{n}", "prompt_ids": [5, 6, 7 + n], "answer_ids": list(range(20, 26 + n)), "ended": False,
            "source": "p.jsonl", "temperature": 0.0, "seed": 0, "text": "",
        }
        for n in range(6)
    ]  # fmt: skip
    (folder / "answers-00000-of-00001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    describe(folder, weights)
    return folder


def describe(folder: Path, weights: str) -> None:
    described = {"schema": "dflash-hf/answers/1", "target": "tiny", "weights": weights}
    (folder / "answers.json").write_text(json.dumps(described))


def options(files: Files) -> list[str]:
    return ["--layers", "0,1", "--target", str(files.target), "--device-map", "cpu", "--local-files-only"]


def test_features_fills_a_cache_that_gives_what_the_target_gives(files: Files, run, answers: Path):
    made = run("data", "features", answers, *options(files), "--final", "--json")
    assert made.exit_code == 0, made.output
    assert "on the fly:" in made.stderr and "chosen: cached" in made.stderr, "the cost is said"
    report = json.loads(made.stdout)
    assert report["schema"] == "dflash-hf/features/1"
    assert (report["documents"], report["held"], report["made"], report["left_out"]) == (6, 6, 6, 0)
    documents = documents_of(AnswerFolder(answers).read(), max_length=64)
    view = view_target(AutoModelForCausalLM.from_pretrained(files.target, dtype=torch.float32).eval())
    source = OnTheFly(view, [1, 0], final=True)
    cached = Cached(answers / "features", [1, 0], final=True, fallback=source)
    assert len(cached.cache) == 6
    for found, computed in zip(cached.of(documents), source.of(documents), strict=True):
        torch.testing.assert_close(found.taps.float(), computed.taps, atol=1e-3, rtol=2**-7)
        torch.testing.assert_close(found.final.float(), computed.final, atol=1e-3, rtol=2**-7)
    again = run("data", "features", answers, *options(files), "--final")
    assert again.exit_code == 0 and "6 of 6 documents are in the cache (0 new)" in again.stdout


def test_features_share_their_work_and_can_only_be_priced(files: Files, run, answers: Path, tmp_path: Path):
    place = ["--folder", tmp_path / "cache"]
    priced = run("data", "features", answers, *options(files), *place, "--dry-run", "--json")
    assert priced.exit_code == 0 and json.loads(priced.stdout)["plan"]["documents"] == 6
    assert not (tmp_path / "cache").exists()
    for number in (0, 1):
        part = run("data", "features", answers, *options(files), *place, "--shard", f"{number}/2", "--json")
        assert part.exit_code == 0, part.output
        assert json.loads(part.stdout)["made"] == 3
    bounded = run("data", "features", answers, *options(files), "--limit-gb", "0.000003")
    assert bounded.exit_code == 0 and "will be computed on the fly" in bounded.stdout


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (["--layers", "0,x"], 2, "takes numbers"),
        (["--layers", "0,9"], 1, "has layers 0 to 2"),
        (["--shard", "2/2"], 2, "from 0 to N - 1"),
        (["--dtype", "int8"], 2, "dtype is one of"),
        (["--target", "/nowhere/target"], 1, "cannot load the target"),
    ],
)
def test_features_refuse_in_a_line(files: Files, run, answers: Path, change, code, said):
    failed = run("data", "features", answers, *options(files), *change)
    assert failed.exit_code == code and said in " ".join(failed.output.replace("│", " ").split())


def test_features_refuse_answers_that_are_not_there_or_empty(files: Files, run, answers: Path, tmp_path: Path):
    failed = run("data", "features", tmp_path / "nothing", *options(files))
    assert failed.exit_code == 1 and "error:" in failed.output
    shard = answers / "answers-00000-of-00001.jsonl"
    row = json.loads(shard.read_text().splitlines()[0])
    shard.write_text(json.dumps(row | {"answer_ids": [7]}) + "\n")
    failed = run("data", "features", answers, *options(files))
    assert failed.exit_code == 1 and "none of the 1 answers" in failed.output


@pytest.mark.parametrize("also", [[], ["--dry-run"]])
def test_features_refuse_answers_of_another_target(files: Files, run, answers: Path, tmp_path: Path, also: list[str]):
    """In any of the folders; nothing is written."""
    other = shutil.copytree(answers, tmp_path / "other")
    describe(other, "0123456789abcdef")
    for folders in ([answers, other], [other, answers]):
        failed = run("data", "features", *folders, *options(files), *also, "--folder", tmp_path / "cache")
        said = " ".join(failed.output.split())
        assert failed.exit_code == 1 and f"{other} holds answers of tiny (weights 0123456789abcdef)" in said
    assert not (tmp_path / "cache").exists()
