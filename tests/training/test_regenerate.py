"""From prompts to a folder of answers: the same answers however the work was shared or broken off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dflash_hf.errors import DFlashWarning, OptionsError, TrainingError
from dflash_hf.target.view import view_target
from dflash_hf.training.answers import regenerate as module
from dflash_hf.training.answers.answers import DESCRIPTION, Answer, AnswerFolder, shard_name
from dflash_hf.training.answers.jobs import AnswerSettings
from dflash_hf.training.answers.regenerate import end_ids, regenerate
from dflash_hf.training.prompts.prompts import Prompt
from tests.tiny import greedy, letters, tiny_target

TEMPLATE = "{% for message in messages %}U:{{ message.content }}{% endfor %}A:"
ENDS = [7, 13, 20]
SETTINGS = AnswerSettings(temperatures=(0.0, 0.8), max_new_tokens=12, batch_size=3, seed=1)
ROWS = 14


def world():
    """A target that ends its texts, its tokenizer, and prompts."""
    target, tokenizer = tiny_target("qwen3"), letters()
    target.generation_config.eos_token_id = ENDS
    tokenizer.chat_template = TEMPLATE
    words = ("walk", "river", "add", "why?", "x" * 20)
    prompts = [Prompt(f"p{n}", ({"role": "user", "content": f"{words[n % 5]}{n}"},), "test.jsonl") for n in range(ROWS)]
    return view_target(target), tokenizer, prompts


VIEW, TOKENIZER, PROMPTS = world()


def run(folder: Path, settings: AnswerSettings = SETTINGS, prompts=PROMPTS, **options):
    return regenerate(VIEW, TOKENIZER, prompts, folder, settings, **{"prompts_sha256": "abc", **options})


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> list[Answer]:
    """The answers of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return AnswerFolder(folder).read()


def test_greedy_answers_are_plain_generates_and_drawn_ones_are_marked(whole):
    assert [answer.id for answer in whole] == sorted(prompt.id for prompt in PROMPTS)
    for answer in whole:
        if answer.temperature == 0:
            text = greedy(VIEW.model, torch.tensor([answer.prompt_ids]), 12, eos_token_id=ENDS)
            assert text[0, len(answer.prompt_ids) :].tolist() == answer.answer_ids and answer.seed == 0
        else:
            assert answer.temperature == 0.8 and answer.seed > 0
        assert answer.ended == (answer.answer_ids[-1] in ENDS)
        assert answer.ended or len(answer.answer_ids) == 12
    assert 0 < sum(answer.temperature == 0 for answer in whole) < ROWS
    assert 0 < sum(answer.ended for answer in whole) < ROWS


def test_a_run_cut_at_any_place_goes_on_to_the_same_answers(whole, tmp_path: Path):
    run(tmp_path)
    path = tmp_path / shard_name(0, 1)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    ends = [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]
    places = {0, 1, ends[1] - 1, ends[1], ends[1] + 1, ends[5] + 40, ends[9] - 2, ends[-1] - 1, ends[-1]}
    for place in sorted(places):
        path.write_bytes(data[:place])
        kept = data[:place].count(b"\n")
        report = run(tmp_path)
        assert (report.done_before, report.answers) == (kept, ROWS - kept)
        assert path.read_bytes()[: ends[kept]] == data[: ends[kept]], "whole lines are left alone"
        assert AnswerFolder(tmp_path).read() == whole


def test_shards_make_the_same_answers_and_their_number_may_change_on_the_way(whole, tmp_path: Path):
    run(tmp_path, shard=(1, 3))
    assert {path.name for path in tmp_path.glob("answers-*")} == {shard_name(1, 3)}
    part = AnswerFolder(tmp_path).ids()
    assert 0 < len(part) < ROWS
    first, second = run(tmp_path, shard=(0, 2)), run(tmp_path, shard=(1, 2))
    assert first.done_before + second.done_before == len(part)
    assert first.answers + second.answers == ROWS - len(part)
    assert AnswerFolder(tmp_path).read() == whole
    assert run(tmp_path).answers == 0


def test_the_description_says_how_the_answers_were_made(tmp_path: Path):
    run(tmp_path)
    said = AnswerFolder(tmp_path).description
    assert said["decoding"] == {
        "temperatures": [0.0, 0.8], "top_p": 1.0, "answers_per_prompt": 1, "seed": 1, "max_new_tokens": 12,
        "eos_ids": ENDS,
    }  # fmt: skip
    assert said["prompts"] == {"sha256": "abc", "count": ROWS, "skipped": 0}
    assert (said["target"], said["dtype"], said["chat"]["thinking"]) == ("Qwen3ForCausalLM", "float32", None)
    assert said["versions"][0]["torch"] == torch.__version__
    assert str(tmp_path) not in (tmp_path / DESCRIPTION).read_text() + (tmp_path / shard_name(0, 1)).read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": replace(SETTINGS, seed=2)}, r"decoding\.seed \(there 1; now 2\)"),
        ({"settings": replace(SETTINGS, temperatures=(0.0,), top_p=0.5)}, r"decoding\.temperatures, decoding\.top_p"),
        ({"prompts_sha256": "other"}, r"prompts\.sha256"),
    ],
)
def test_other_settings_into_the_same_folder_are_refused_by_name(tmp_path: Path, change, message):
    run(tmp_path, prompts=PROMPTS[:3])
    before = (tmp_path / shard_name(0, 1)).read_bytes()
    with pytest.raises(TrainingError, match=message):
        run(tmp_path, **change)
    assert (tmp_path / shard_name(0, 1)).read_bytes() == before


def test_another_target_or_template_into_the_same_folder_is_refused(tmp_path: Path):
    run(tmp_path, prompts=PROMPTS[:3])
    other = tiny_target("qwen3", seed=1)
    other.generation_config.eos_token_id = ENDS
    with pytest.raises(TrainingError, match="other values of weights"):
        regenerate(view_target(other), TOKENIZER, PROMPTS, tmp_path, SETTINGS, prompts_sha256="abc")
    tokenizer = letters()
    tokenizer.chat_template = TEMPLATE + ":"
    with pytest.raises(TrainingError, match=r"chat\.template_sha256"):
        regenerate(VIEW, tokenizer, PROMPTS, tmp_path, SETTINGS, prompts_sha256="abc")


def test_more_prompts_and_newer_versions_may_go_on(whole, tmp_path: Path, monkeypatch):
    run(tmp_path, prompts=PROMPTS[:5])
    monkeypatch.setattr(module, "versions", lambda: {"torch": "99"})
    run(tmp_path)
    assert AnswerFolder(tmp_path).read() == whole
    said = AnswerFolder(tmp_path).description
    assert said["prompts"]["count"] == ROWS and [each["torch"] for each in said["versions"]] == [
        torch.__version__,
        "99",
    ]


def test_answers_of_unknown_origin_are_not_added_to(tmp_path: Path):
    run(tmp_path, prompts=PROMPTS[:3])
    (tmp_path / DESCRIPTION).unlink()
    with pytest.raises(TrainingError, match="no answers.json that says how they were made"):
        run(tmp_path)


def test_empty_answers_are_written_and_counted(tmp_path: Path):
    target = tiny_target("qwen3")
    first = greedy(target, torch.tensor([TOKENIZER("U:walk0A:")["input_ids"]]), 1)[0, -1]
    target.generation_config.eos_token_id = int(first)
    report = regenerate(
        view_target(target), TOKENIZER, PROMPTS, tmp_path, replace(SETTINGS, temperatures=(0.0,)), prompts_sha256="abc"
    )
    answers = {answer.id: answer for answer in AnswerFolder(tmp_path).read()}
    assert answers["p0"].empty and answers["p0"].ended and answers["p0"].answer_ids == [int(first)]
    assert report.empty == sum(answer.empty for answer in answers.values()) >= 1
    assert report.ended + report.cut == report.answers == ROWS


def test_progress_and_plan_are_told(tmp_path: Path):
    plans, states = [], []
    report = run(tmp_path, on_plan=plans.append, progress=states.append)
    assert plans[0].left == ROWS and len(plans[0].batches) == len(states) == 5
    assert states[-1].done == states[-1].total == ROWS and states[-1].left_seconds == 0
    assert states[-1].tokens == report.tokens == sum(len(each.answer_ids) for each in AnswerFolder(tmp_path).read())


def test_what_the_target_lacks_or_would_do_otherwise_is_warned_of(tmp_path: Path):
    target = tiny_target("qwen3")
    target.generation_config.repetition_penalty = 1.2
    view = view_target(target)
    assert end_ids(view) == []
    with pytest.warns(DFlashWarning) as warned:
        regenerate(view, TOKENIZER, PROMPTS[:2], tmp_path, SETTINGS, prompts_sha256="abc")
    said = " ".join(str(warning.message) for warning in warned)
    assert "repetition_penalty" in said and "no end-of-text id" in said


def test_a_shard_that_does_not_exist_and_a_tokenizer_without_a_template_are_refused(tmp_path: Path):
    with pytest.raises(OptionsError, match="shard 2 of 2"):
        run(tmp_path, shard=(2, 2))
    with pytest.raises(TrainingError, match="no chat template"):
        regenerate(VIEW, letters(), PROMPTS, tmp_path, SETTINGS, prompts_sha256="abc")
    assert not list(tmp_path.iterdir())


KILLED = """
import sys
from pathlib import Path
from tests.training.test_regenerate import SETTINGS, run
run(Path(sys.argv[1]), progress=lambda state: print(state.done, flush=True))
"""


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_answers(whole, tmp_path: Path):
    """Killed for good three times, each time after another batch."""
    root = Path(__file__).parents[2]
    for batches in (1, 2, 1):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )  # fmt: skip
        for _ in range(batches):
            assert process.stdout.readline()
        time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    done = AnswerFolder(tmp_path).ids()
    assert len(done) >= 9
    assert run(tmp_path).done_before == len(done)
    assert AnswerFolder(tmp_path).read() == whole
    lines = (tmp_path / shard_name(0, 1)).read_text().splitlines()
    assert len(lines) == ROWS and len({json.loads(line)["id"] for line in lines}) == ROWS
