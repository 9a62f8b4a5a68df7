from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import fields

import pytest
import typer

from dflash_hf.cli import command as shared
from dflash_hf.cli.app import app
from dflash_hf.cli.command import PairOptions
from dflash_hf.errors import DFlashError, OptionsError


def test_import_of_the_command_line_imports_neither_torch_nor_transformers() -> None:
    code = "import dflash_hf.cli, dflash_hf.cli.app, sys; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_answers_quickly() -> None:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "dflash_hf", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    assert min(times) < 3  # the aim is 1 s on an idle machine; a test must survive a busy one


@pytest.mark.parametrize("name", ["generate", "inspect", "verify", "doctor", "bench"])
def test_pair_options_are_the_same_in_every_command(run, name) -> None:
    text = run(name, "--help", env={"COLUMNS": "200"}).stdout
    for item in fields(PairOptions):
        assert "--" + item.name.replace("_", "-") in text
    assert "--json" in text and "--debug" in text


def test_version_is_the_packages(run) -> None:
    import dflash_hf

    assert run("--version").stdout == f"dflash-hf {dflash_hf.__version__}\n"


def test_a_target_without_a_drafter_is_a_usage_error(run, files) -> None:
    result = run("verify", "--target", files.target)
    assert result.exit_code == 2 and "needs a drafter" in result.stderr


def test_a_pair_that_does_not_fit_is_one_error_and_a_hint(run, files) -> None:
    result = run("verify", "--target", files.other_target, "--drafter", files.drafter, "--device-map", "cpu")
    assert result.exit_code == 1
    lines = [line for line in result.stderr.splitlines() if line.startswith(("error:", "hint:"))]
    assert "does not fit" in lines[0] and "inspect" in lines[1]
    assert result.stdout == "" and "Traceback" not in result.stderr


def test_a_missing_target_is_named(run, files, tmp_path) -> None:
    gone = tmp_path / "gone"
    result = run("verify", "--target", gone, "--drafter", files.drafter, "--local-files-only")
    assert result.exit_code == 1 and str(gone) in result.stderr.replace("\n", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [(DFlashError("no"), 1), (OptionsError("bad"), 2), (RuntimeError("own bug"), 1), (typer.Exit(3), 3)],
)
def test_run_turns_errors_into_exit_codes(monkeypatch, capsys, error, code) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        shared._run(fails, {}, debug=False)
    assert ended.value.exit_code == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert ("hint: run the command again with --debug" in said) == (str(error) == "own bug")


def test_debug_shows_the_traceback(run, files, tmp_path, monkeypatch) -> None:
    arguments = ("inspect", tmp_path / "gone")
    assert "Traceback" not in run(*arguments).stderr
    assert "Traceback" in run(*arguments, "--debug").stderr
    assert "Traceback" in run(*arguments, env={"DFLASH_HF_DEBUG": "1"}).stderr


def test_inspect_shows_files_config_and_fit(run, files) -> None:
    result = run("inspect", files.drafter, "--target", files.target)
    assert result.exit_code == 0, result.stderr
    assert "dialect: zlab" in result.stdout and "block_size" in result.stdout
    assert f"fits {files.target}" in result.stdout
    body = json.loads(run("inspect", files.drafter, "--json").stdout)
    assert body["schema"] == "dflash-hf/inspect/1" and body["tensors"]["fc.weight"]["shape"] == [32, 64]
    assert body["parameters"] == sum(_size(item["shape"]) for item in body["tensors"].values())


def _size(shape: list[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def test_inspect_says_why_a_target_does_not_fit(run, files) -> None:
    result = run("inspect", files.drafter, "--target", files.other_target, "--json")
    assert result.exit_code == 3
    target = json.loads(result.stdout)["target"]
    assert target["fits"] is False and "64" in target["why"]


def test_inspect_refuses_two_drafters(run, files) -> None:
    assert run("inspect", files.drafter, "--drafter", "another").exit_code == 2


def test_verify_passes_a_right_pair(run, files) -> None:
    result = run("verify", "hello o", "hello a", "--raw", "--max-new-tokens", "12", *files.options)
    assert result.exit_code == 0, result.stderr
    assert "ok: 2 of 2 texts identical, near ties 0 of 24 tokens" in result.stdout
    body = json.loads(run("verify", "--max-new-tokens", "4", "--json", *files.options).stdout)
    assert body["schema"] == "dflash-hf/verify/1" and body["ok"] and len(body["prompts"]) == 3


def test_verify_fails_a_planted_token_with_exit_code_3(run, files, monkeypatch) -> None:
    from dflash_hf.bench.answers import Answer
    from dflash_hf.cli import verify as module

    honest = module.drafted

    def planted(pair, inputs, sampling, **more):
        answer = honest(pair, inputs, sampling, **more)
        return Answer([*answer.tokens[:5], answer.tokens[5] + 1, *answer.tokens[6:]], answer.seconds, answer.trace)

    monkeypatch.setattr(module, "drafted", planted)
    result = run("verify", "hello o", "--raw", "--max-new-tokens", "12", *files.options)
    assert result.exit_code == 3
    assert "DIFFERENT: token 5" in result.stdout and "FAILED: 0 of 1" in result.stdout


def test_verify_fails_a_text_that_ends_too_soon(run, files, monkeypatch) -> None:
    from dflash_hf.bench.answers import Answer
    from dflash_hf.cli import verify as module

    honest = module.drafted

    def cut(pair, inputs, sampling, **more):
        answer = honest(pair, inputs, sampling, **more)
        return Answer(answer.tokens[:-2], answer.seconds, answer.trace)

    monkeypatch.setattr(module, "drafted", cut)
    result = run("verify", "hello o", "--raw", "--max-new-tokens", "12", *files.options)
    assert result.exit_code == 3 and "one text ends at token 10" in result.stdout


def test_bench_reports_every_speed_with_its_same_text_count(run, files, tmp_path) -> None:
    path, out = tmp_path / "prompts.jsonl", tmp_path / "report.json"
    path.write_text('{"question": "hello o"}\n{"prompt": "hello a"}\n{"turns": ["o o o", "b"], "category": "x"}\n')
    arguments = ("bench", path, "--raw", "--max-new-tokens", "9", "--out", out, "--also", "lookup", *files.options)
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    for line in result.stdout.splitlines():
        assert ("x plain" in line) == ("same text 3 of 3" in line)
    data = json.loads(out.read_text())
    assert data["schema"] == "dflash-hf/bench/1" and set(data["lanes"]) == {"plain", "dflash", "lookup"}
    # Two easy prompts in 2 rounds of 4 tokens each; the hard one in 7 of 1, and a last one with no room to draft.
    assert data["lanes"]["dflash"]["drafting"]["tau_token_weighted"] == pytest.approx((8 + 8 + 7) / (2 + 2 + 7))
    assert data["lanes"]["dflash"]["drafting"]["tau_prompt_weighted"] == pytest.approx((4 + 1 + 4) / 3)
    assert data["provenance"]["pair"]["target"] == files.target.name


def test_bench_refuses_an_unknown_lane_and_a_bad_file(run, files, tmp_path) -> None:
    assert run("bench", tmp_path / "gone.jsonl", *files.options).exit_code == 2
    result = run("bench", tmp_path / "gone.jsonl", "--also", "magic", *files.options)
    assert result.exit_code == 2 and "host-loop" in result.stderr


def test_env_names_versions_and_the_embedded_pair(run) -> None:
    body = json.loads(run("env", "--json").stdout)
    assert body["schema"] == "dflash-hf/env/1"
    assert {"torch", "transformers", "python"} <= set(body["versions"]) and "embedded target" in body["embedded"]
    assert "cache: " in run("env").stdout


def test_convert_writes_a_layout_that_loads(run, files, tmp_path) -> None:
    result = run("convert", files.drafter, tmp_path / "copy", "--to", "zlab", "--json")
    assert result.exit_code == 0, result.stderr
    assert "model.safetensors" in json.loads(result.stdout)["files"]
    assert run("inspect", tmp_path / "copy", "--target", files.target).exit_code == 0


def test_every_command_has_help_and_an_example_in_the_docs() -> None:
    from pathlib import Path

    page = Path(__file__).parents[2].joinpath("docs", "cli.md").read_text(encoding="utf-8")
    names = [item.name for item in app.registered_commands]
    assert names
    for name in names:
        assert f"## `{name}`" in page and f"dflash-hf {name}" in page


def test_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dflash_hf", "nonsense"],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 2 and "nonsense" in done.stderr


def test_convert_to_speculators_wants_a_target_for_a_borrowed_embedding(run, files, tmp_path) -> None:
    shutil.copytree(files.drafter, tmp_path / "drafter")
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 1]  # the last layer's tap means something else there
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config))
    arguments = (tmp_path / "drafter", tmp_path / "out", "--to", "speculators")
    refused = run("convert", *arguments)
    assert refused.exit_code == 1 and "--target" in refused.stderr and not (tmp_path / "out").exists()
    assert run("convert", *arguments, "--target", files.target, "--local-files-only").exit_code == 0
    body = json.loads(run("inspect", tmp_path / "out", "--json").stdout)
    assert body["files"]["dialect"] == "speculators-dflash" and body["config"]["embedding"] == "own"
