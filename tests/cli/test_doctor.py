"""``doctor`` on the tiny pair of conftest: a prompt that ends in the mask token is drafted perfectly."""

from __future__ import annotations

import json
import shutil

import pytest

from dflash_hf.bench import diagnose
from dflash_hf.cli import doctor
from tests.cli.conftest import BLOCK


@pytest.fixture(autouse=True)
def prompt_that_ends_in_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROMPT", "a walk to")


def report(run, files, *more: str) -> tuple[int, dict]:
    result = run("doctor", *files.options, "--tokens", "24", "--json", *more)
    assert result.stdout, result.stderr
    return result.exit_code, json.loads(result.stdout)


def test_a_pair_that_drafts_is_ok(run, files) -> None:
    code, body = report(run, files)
    assert code == 0 and body["ok"] and body["schema"] == "dflash-hf/doctor/1"
    assert body["probe"]["tau"] > BLOCK - 0.5 and not body["probe"]["near_one"] and body["probe"]["tried"] == []
    assert body["pairing"]["fits"] and body["cache"]["class"] == "DynamicCache"
    assert body["cache"]["cannot_go_back"] is None
    assert body["drafter"]["dialect"] == "zlab" and body["target"]["dtype"] == "float32"
    text = run("doctor", *files.options, "--tokens", "24").stdout
    assert "tokens a round" in text and text.strip().endswith("ok")


def test_a_pair_that_does_not_fit_fails_the_check(run, files) -> None:
    result = run("doctor", "--target", files.other_target, "--drafter", files.drafter, "--device-map", "cpu", "--json")
    assert result.exit_code == 3
    body = json.loads(result.stdout)
    assert body["ok"] is False and "does not fit" in body["pairing"]["why"]


def test_a_wrong_shift_is_named_and_fails_the_check(run, files, tmp_path, monkeypatch) -> None:
    """The drafter repeats its own slot's token: read as next-position it drafts what the target repeats."""
    monkeypatch.setattr(doctor, "PROMPT", "a walk")  # ends in another token: slot 0, the anchor's, says it again
    before = (files.drafter / "config.json").read_bytes()
    code, body = report(run, files)
    assert code == 3 and body["probe"]["near_one"]
    better = body["probe"]["better"]
    assert better["change"] == "slots predict the place after their own" and better["tau"] > 1.5
    assert better["keys"] is None, "z-lab's reader refuses shift_label"
    assert (files.drafter / "config.json").read_bytes() == before
    text = run("doctor", *files.options, "--tokens", "24").stdout
    assert "FAILED: near one token a round; with slots predict the place after their own" in text
    assert "No key of this dialect (zlab) says so" in text


def test_next_to_nothing_kept_fails_the_check_whatever_the_reason(run, files, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "PROMPT", "a walk")
    monkeypatch.setattr(diagnose, "alternatives", lambda *_, **__: [])
    code, body = report(run, files)
    assert code == 3 and not body["ok"] and body["probe"]["near_one"]
    assert body["probe"]["better"] is None and body["probe"]["hint"] is None
    text = run("doctor", *files.options, "--tokens", "24").stdout
    assert "FAILED: near one token a round, no faster than without a drafter" in text and "--thinking" in text


@pytest.mark.parametrize(("near_one", "code", "verdict"), [(0.5, 0, "ok"), (1.5, 3, "FAILED: near one")])
def test_a_little_better_is_a_hint_and_does_not_fail_a_pair_that_drafts(
    near_one, code, verdict, run, files, monkeypatch
) -> None:
    """The wrong shift again, as if it cost little."""
    monkeypatch.setattr(doctor, "PROMPT", "a walk")
    monkeypatch.setattr(diagnose, "_FACTOR", 100.0)
    monkeypatch.setattr(diagnose, "NEAR_ONE", near_one)
    found, body = report(run, files, "--thorough")
    assert found == code and body["ok"] is (code == 0)
    assert body["probe"]["better"] is None and body["probe"]["hint"]["keys"] is None
    lines = run("doctor", *files.options, "--tokens", "24", "--thorough").stdout.splitlines()
    assert lines[-2].startswith("hint: with slots predict the place after their own it would be")
    assert lines[-1].startswith(verdict)


def test_thorough_tries_other_readings_of_a_pair_that_drafts(run, files) -> None:
    code, body = report(run, files, "--thorough")
    assert code == 0 and len(body["probe"]["tried"]) > 5 and body["probe"]["hint"] is None


def test_too_short_an_answer_says_nothing(run, files) -> None:
    result = run("doctor", *files.options, "--tokens", "4", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["probe"] is None


def test_a_target_alone_takes_the_drafter_published_for_it(run, files) -> None:
    result = run("doctor", "--target", files.target, "--local-files-only")
    assert result.exit_code == 2 and 'drafter="auto": no drafter is known' in result.stderr


def test_windows_longer_than_the_probe_are_said_to_be_untested(run, files, tmp_path) -> None:
    """Full attention gives the same tokens there, bit by bit, and so says nothing of the windows."""
    drafter = tmp_path / "sliding"
    shutil.copytree(files.drafter, drafter)
    config = json.loads((drafter / "config.json").read_text())
    config |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": 200, "use_sliding_window": True}
    (drafter / "config.json").write_text(json.dumps(config | {"is_causal": False}))
    options = ["--target", files.target, "--drafter", drafter, "--device-map", "cpu", "--thorough"]
    body = json.loads(run("doctor", *options, "--tokens", "24", "--json").stdout)
    assert body["probe"]["windows_not_tested"] == [200]
    assert "no windows" not in [each["change"] for each in body["probe"]["tried"]]
    text = run("doctor", *options, "--tokens", "24").stdout
    assert "windows of 200 are longer than this probe, so not tested (--tokens)" in text
    (drafter / "config.json").write_text(json.dumps(config | {"is_causal": False, "sliding_window": 6}))
    body = json.loads(run("doctor", *options, "--tokens", "24", "--json").stdout)
    assert body["probe"]["windows_not_tested"] == []
    tried = {each["change"]: each["keys"] for each in body["probe"]["tried"]}
    assert tried["no windows"] == {"layer_types": ["full_attention"] * 2}


def test_what_to_set_is_said_by_path_and_value() -> None:
    said = doctor._how({"keys": {"dflash_config.causal": False, "is_causal": None}}, "zlab")
    assert said == (
        "To have it so, set dflash_config.causal to false and is_causal to null in the drafter's config.json"
    )
    assert "No key of this dialect (muse_assistant)" in doctor._how({"keys": None}, "muse_assistant")
