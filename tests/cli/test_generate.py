from __future__ import annotations

import json

import pytest

from dflash_hf.trace import Trace

# 12 new tokens: the prefill's, then blocks of 4 (3 drafted and a bonus) while the budget allows.
EASY = ("generate", "--raw", "--max-new-tokens", "13")


def test_generate_marks_accepted_spans_in_brackets_without_a_terminal(run, files) -> None:
    result = run(*EASY, "hello o", *files.options)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("o[ooo]o[ooo]o[ooo]o\n")
    assert "tau 4.00" in result.stdout and "100% of drafted tokens accepted" in result.stdout
    assert "identical: yes" in result.stdout and "tokens/s" in result.stdout
    assert "\x1b" not in result.stdout
    assert "loading" in result.stderr and "loading" not in result.stdout


def test_generate_styles_only_add_to_the_plain_text(run, files, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run(*EASY, "hello o", *files.options, color=True)
    assert "\x1b[32m\x1b[4mooo\x1b[0m" in result.stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run(*EASY, "hello o", *files.options, color=True).stdout


def test_generate_marks_nothing_where_nothing_is_accepted(run, files) -> None:
    result = run(*EASY, "hello a", *files.options)
    assert result.stdout.startswith(" a" * 13 + "\n")
    assert "tau 1.00" in result.stdout and "identical: yes" in result.stdout


def test_generate_json_has_spans_that_join_to_the_text(run, files) -> None:
    result = run(*EASY, "hello o", "--json", *files.options)
    body = json.loads(result.stdout)
    assert body["schema"] == "dflash-hf/generate/1"
    assert "".join(span["text"] for span in body["spans"]) == body["text"] == "o" * 13
    assert [span["kind"] for span in body["spans"]] == ["prefill"] + ["accepted", "bonus"] * 3
    assert body["plain"]["identical"] is True and body["plain"]["tokens_per_second"] > 0
    assert body["metrics"]["tau"] == 4.0


def test_generate_compare_off_runs_no_plain_decoding(run, files) -> None:
    result = run(*EASY, "hello o", "--compare", "off", *files.options)
    assert result.exit_code == 0
    assert "plain" not in result.stdout and "identical" not in result.stdout
    assert json.loads(run(*EASY, "hello o", "--compare", "off", "--json", *files.options).stdout)["plain"] is None


def test_generate_reads_the_prompt_from_stdin(run, files) -> None:
    for arguments in (["-"], []):
        result = run(*EASY, *arguments, *files.options, input="hello o\n")
        assert result.stdout.startswith("o[ooo]"), result.stderr
    empty = run(*EASY, *files.options, input="")
    assert empty.exit_code == 2 and "no prompt" in empty.stderr


def test_generate_writes_a_trace_that_reads_back(run, files, tmp_path) -> None:
    path = tmp_path / "trace.json"
    assert run(*EASY, "hello o", "--trace", path, *files.options).exit_code == 0
    trace = Trace.from_json(path)
    assert len(trace.tokens) == 13 and trace.metrics()["tau"] == 4.0
    assert (trace.target, trace.drafter) == (files.target.name, files.drafter.name)
    missing = run(*EASY, "hello o", "--trace", tmp_path / "no" / "trace.json", *files.options)
    assert missing.exit_code == 2 and "no folder" in missing.stderr.replace("\n", " ")


def test_generate_sampled_text_depends_on_the_seed_alone(run, files) -> None:
    def text(seed: str) -> str:
        arguments = ("generate", "--raw", "--json", "--temperature", "9", "--max-new-tokens", "12", "--seed", seed)
        body = json.loads(run(*arguments, "hello o", *files.options).stdout)
        assert body["plain"]["identical"] is None
        return body["text"]

    assert text("1") == text("1") != text("2")


def test_generate_reports_a_text_that_is_not_the_plain_one(run, files, monkeypatch) -> None:
    from dflash_hf.bench.answers import Answer
    from dflash_hf.cli import generate as module

    honest = module._stream

    def planted(*arguments, **options):
        answer, live = honest(*arguments, **options)
        return Answer(
            [*answer.tokens[:6], answer.tokens[6] + 1, *answer.tokens[7:]], answer.seconds, answer.trace
        ), live

    monkeypatch.setattr(module, "_stream", planted)
    result = run(*EASY, "hello o", *files.options)
    assert result.exit_code == 3
    assert "identical: no, from token 6 on; NOT a near tie (gap" in result.stdout


def test_generate_ends_cleanly_when_interrupted(run, files, monkeypatch) -> None:
    from dflash_hf.cli.live import LiveAnswer

    def stop(self, record) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveAnswer, "on_round", stop)
    result = run(*EASY, "hello o", *files.options)
    assert result.exit_code == 130 and "interrupted" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        (["--dtype", "int8"], 2, "dtype is one of"),
        (["--temperature", "-1"], 2, "temperature"),
        (["--compare", "maybe"], 2, "maybe"),
    ],
)
def test_generate_refuses_values_before_loading(run, files, extra, code, words) -> None:
    result = run(*EASY, "hello o", *files.options, *extra)
    assert result.exit_code == code and words in result.stderr and "loading" not in result.stderr
