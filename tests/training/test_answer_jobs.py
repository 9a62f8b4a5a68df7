"""What is to be answered follows from prompts and settings alone, and every answer has one process."""

from __future__ import annotations

import statistics

import pytest

from dflash_hf.errors import OptionsError, TrainingError
from dflash_hf.target.view import view_target
from dflash_hf.training.answers.jobs import AnswerSettings, deal, encode_prompts, plan
from dflash_hf.training.prompts.prompts import Prompt
from tests.families import SIZES, Family
from tests.tiny import build_target, letters, tiny_target

TEMPLATE = "{% for message in messages %}U:{{ message.content }}{% endfor %}A:"


def asked(text: str, name: str) -> Prompt:
    return Prompt(name, ({"role": "user", "content": text},), "test")


def jobs_of(count: int, **settings: object):
    return deal([(asked("x", f"p{n}"), (5,) * (1 + n % 7)) for n in range(count)], AnswerSettings(**settings))


def test_deal_gives_each_prompt_one_temperature_and_a_seed_of_its_own():
    jobs = jobs_of(400, temperatures=(0.0, 0.7, 1.0), seed=3)
    assert jobs == jobs_of(400, temperatures=(0.0, 0.7, 1.0), seed=3)
    assert jobs != jobs_of(400, temperatures=(0.0, 0.7, 1.0), seed=4)
    for temperature in (0.0, 0.7, 1.0):
        assert 90 < sum(job.temperature == temperature for job in jobs) < 180
    assert {job.seed for job in jobs if not job.temperature} == {0}
    drawn = [job.seed for job in jobs if job.temperature]
    assert len(set(drawn)) == len(drawn)


def test_deal_answers_a_prompt_several_times_at_every_temperature():
    jobs = jobs_of(5, temperatures=(0.0, 1.0, 1.5), answers_per_prompt=3)
    assert [job.id for job in jobs[:3]] == ["p0/0", "p0/1", "p0/2"]
    for first in range(0, len(jobs), 3):
        assert {job.temperature for job in jobs[first : first + 3]} == {0.0, 1.0, 1.5}


def test_shards_share_the_work_without_overlap_whatever_is_done_already():
    jobs, settings = jobs_of(101), AnswerSettings(batch_size=8)
    done = {job.id for job in jobs[::3]}
    plans = [plan(jobs, settings, (number, 3), done, 0) for number in range(3)]
    left = [job.id for each in plans for batch in each.batches for job in batch]
    assert sorted([*left, *done]) == sorted(job.id for job in jobs)
    assert sum(each.done for each in plans) == len(done) and sum(each.answers for each in plans) == 101


def test_batches_are_of_like_length_and_any_first_part_is_a_fair_sample():
    jobs = deal([(asked("x", f"p{n}"), (5,) * (1 + n)) for n in range(640)], AnswerSettings())
    work = plan(jobs, AnswerSettings(batch_size=16), (0, 1), set(), 0)
    lengths = [[len(job.prompt_ids) for job in batch] for batch in work.batches]
    assert all(max(batch) - min(batch) == 15 for batch in lengths)
    half = statistics.mean(length for batch in lengths[:20] for length in batch)
    assert 240 < half < 400 and lengths != sorted(lengths)
    assert work.prompts == 640 and work.prompt_tokens == 640 * 641 // 2


def test_two_prompts_of_one_id_are_refused():
    with pytest.raises(TrainingError, match="same id"):
        deal([(asked("x", "p"), (5,)), (asked("y", "p"), (6,))], AnswerSettings())


def test_prompts_that_are_too_long_are_named_or_left_out():
    tokenizer, view = letters(), view_target(tiny_target("llama"))
    tokenizer.chat_template = TEMPLATE
    prompts = [asked("a" * length, f"p{length}") for length in (3, 30, 500, 2, 509)]
    refused = AnswerSettings(max_new_tokens=10)
    with pytest.raises(
        TrainingError, match=r"2 of 5 prompts are too long: 3 \(p500, 504 tokens\), 5 \(p509, .*512 posi"
    ):
        encode_prompts(view, tokenizer, prompts, refused)
    kept = encode_prompts(view, tokenizer, prompts, AnswerSettings(max_new_tokens=8, skip_long=True))
    assert [prompt.id for prompt, _ in kept] == ["p3", "p30", "p500", "p2"], "504 and 8 are 512"
    assert [len(ids) for _, ids in kept] == [7, 34, 504, 6]
    short = AnswerSettings(max_new_tokens=8, skip_long=True, max_prompt_tokens=6)
    assert [prompt.id for prompt, _ in encode_prompts(view, tokenizer, prompts, short)] == ["p2"]
    with pytest.raises(TrainingError, match="no prompt is left.*may have 5 tokens"):
        encode_prompts(view, tokenizer, prompts, AnswerSettings(skip_long=True, max_prompt_tokens=5))


def test_a_text_in_which_rotary_frequencies_change_is_too_long():
    longrope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 40, "factor": 4.0,
    }  # fmt: skip
    target = build_target(Family("LlamaConfig", SIZES | {"rope_parameters": longrope}))
    tokenizer = letters()
    tokenizer.chat_template = TEMPLATE
    with pytest.raises(TrainingError, match="1 of 2 prompts.*frequencies"):
        encode_prompts(
            view_target(target),
            tokenizer,
            [asked("a" * 26, "p"), asked("a" * 27, "q")],
            AnswerSettings(max_new_tokens=10),
        )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperatures": ()}, "temperatures"),
        ({"temperatures": (0.5, 0.5)}, "distinct"),
        ({"temperatures": (-0.5,)}, "at least 0"),
        ({"top_p": 0.0}, "top_p"),
        ({"answers_per_prompt": 2}, "repeat the greedy answer"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_settings_that_cannot_be_are_refused(values, message):
    with pytest.raises(OptionsError, match=message):
        AnswerSettings(**values)
