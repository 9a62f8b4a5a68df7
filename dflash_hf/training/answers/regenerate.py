"""The target answers prompts, and the answers are written down: what a drafter is trained on.

A drafter learns what its target says, not what a data set says. Every answer depends on its prompt, its temperature
and its seed alone (up to the rounding of batches), each is written once, and a process that is killed at any moment
goes on where it was. Several processes share the work by shards.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_hf.errors import OptionsError, warn
from dflash_hf.target.fingerprint import weights_fingerprint
from dflash_hf.target.taps import TapRecorder
from dflash_hf.target.view import TargetView
from dflash_hf.training.answers.answering import answer_batch
from dflash_hf.training.answers.answers import SCHEMA, Answer, AnswerFolder
from dflash_hf.training.answers.description import describe
from dflash_hf.training.answers.jobs import AnswerPlan, AnswerSettings, Job, deal, encode_prompts, plan
from dflash_hf.training.answers.provenance import tokenizer_fingerprint, versions
from dflash_hf.training.answers.shard import AnswerShard
from dflash_hf.training.features.writer import FeatureWriter
from dflash_hf.training.prompts.chat import chat_fingerprint
from dflash_hf.training.prompts.prompts import Prompt

__all__ = ["AnswerProgress", "AnswerReport", "AnswerSettings", "end_ids", "regenerate"]

# Settings of a generation config that change greedy text as well, and what they are when off.
_STEERING: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    **dict.fromkeys(
        ("min_new_tokens", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias")
        + ("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")
    ),
}


@dataclass(frozen=True, slots=True)
class AnswerProgress:
    """After a batch, of this process: answers on disk and in all; tokens and seconds of this run."""

    done: int
    total: int
    tokens: int
    seconds: float
    left_seconds: float


@dataclass(frozen=True, slots=True)
class AnswerReport:
    """What a run made. ``tokens`` counts answer tokens, the end of text included."""

    answers: int
    tokens: int
    ended: int
    cut: int
    empty: int  # ended at once; counted among the ended ones too
    done_before: int
    skipped: int
    seconds: float


def regenerate(
    view: TargetView,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    folder: str | Path,
    settings: AnswerSettings,
    *,
    prompts_sha256: str,
    shard: tuple[int, int] = (0, 1),
    features: FeatureWriter | None = None,
    on_plan: Callable[[AnswerPlan], None] = lambda plan: None,
    progress: Callable[[AnswerProgress], None] = lambda state: None,
) -> AnswerReport:
    """Answer every prompt of a shard that has no answer in the folder yet.

    Args:
        view: the target.
        tokenizer: its tokenizer, with a chat template.
        prompts: with distinct ids.
        folder: written into; see ``training.answers``.
        settings: how to answer.
        prompts_sha256: of the file the prompts came from.
        shard: number from 0, and how many processes share the work.
        features: an open cache that keeps what the tapped layers put out on the way, so that no second pass is needed;
            a full one is left alone.
        on_plan: told what is to be done, before the target does anything.
        progress: told after every batch.

    Raises:
        OptionsError: there is no such shard.
        TrainingError: a prompt is too long, the folder holds answers made otherwise or is being written by another
            process, or the disk refuses; what was written before is safe.
    """
    number, count = shard
    if not 0 <= number < count:
        raise OptionsError(f"shard {number} of {count} does not exist; shards count from 0 to {count - 1}")
    folder = Path(folder)
    encoded = encode_prompts(view, tokenizer, prompts, settings)
    jobs, skipped = deal(encoded, settings), len(prompts) - len(encoded)
    ends = end_ids(view)
    _warn_of_steering(view, ends)
    description = _description(view, tokenizer, settings, ends) | {
        "prompts": {"sha256": prompts_sha256, "count": len(prompts), "skipped": skipped}
    }
    with AnswerShard(folder, number, count, on_start=lambda: describe(folder, description)) as written:
        work = plan(jobs, settings, shard, AnswerFolder(folder).ids(), skipped)
        on_plan(work)
        return _answer_all(view, tokenizer, settings, work, ends, written, features, progress)


def end_ids(view: TargetView) -> list[int]:
    """The target's end-of-text ids, from its generation config or else its config; none where it has none."""
    for config in (getattr(view.model, "generation_config", None), view.text_config):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            return sorted(map(int, found)) if isinstance(found, Sequence) else [int(found)]
    return []


def _answer_all(
    view: TargetView,
    tokenizer: Any,
    settings: AnswerSettings,
    work: AnswerPlan,
    ends: list[int],
    shard: AnswerShard,
    features: FeatureWriter | None,
    progress: Callable[[AnswerProgress], None],
) -> AnswerReport:
    started, counted = time.monotonic(), Counter[str]()
    for batch in work.batches:
        answers = _answers(view, batch, settings, ends, features)
        texts = tokenizer.batch_decode([answer.answer_ids for answer in answers], skip_special_tokens=True)
        shard.append([answer.to_line(text) for answer, text in zip(answers, texts, strict=True)])
        counted["answers"] += len(answers)
        counted["tokens"] += sum(len(answer.answer_ids) for answer in answers)
        counted["ended"] += sum(answer.ended for answer in answers)
        counted["empty"] += sum(answer.empty for answer in answers)
        seconds = time.monotonic() - started
        left = seconds / counted["answers"] * (work.left - counted["answers"])
        progress(AnswerProgress(work.done + counted["answers"], work.answers, counted["tokens"], seconds, left))
    return AnswerReport(
        counted["answers"],
        counted["tokens"],
        counted["ended"],
        counted["answers"] - counted["ended"],
        counted["empty"],
        work.done,
        work.skipped,
        time.monotonic() - started,
    )


def _answers(
    view: TargetView,
    batch: Sequence[Job],
    settings: AnswerSettings,
    ends: list[int],
    features: FeatureWriter | None,
) -> list[Answer]:
    caught: list[list[Tensor]] = [[] for _ in batch]
    shortest = min(len(job.prompt_ids) for job in batch) + 1
    recorder = None
    if features is not None and features.has_room(shortest):  # else it could keep none of them
        recorder = TapRecorder(view, list(features.description.layer_ids))
    replies = answer_batch(
        view,
        [job.prompt_ids for job in batch],
        eos_ids=ends,
        max_new_tokens=settings.max_new_tokens,
        temperature=[job.temperature for job in batch],
        top_p=settings.top_p,
        seeds=[job.seed for job in batch],
        recorder=recorder,
        on_taps=None if recorder is None else lambda row, taps: caught[row].append(taps),
    )
    answers = [
        Answer(job.id, list(job.prompt_ids), reply.ids, reply.ended, job.source, job.temperature, job.seed)
        for job, reply in zip(batch, replies, strict=True)
    ]
    if features is not None:
        for answer, taps in zip(answers, caught, strict=True):
            ids = [*answer.prompt_ids, *answer.answer_ids]
            if recorder is None:
                features.leave_out(ids)
            else:
                features.add(answer.id, ids, torch.cat(taps))
    return answers


def _description(view: TargetView, tokenizer: Any, settings: AnswerSettings, ends: list[int]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "target": view.public_name,
        "weights": weights_fingerprint(view.model),
        "dtype": str(view.model.dtype).removeprefix("torch."),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "chat": chat_fingerprint(tokenizer, settings.thinking),
        "decoding": settings.decoding() | {"eos_ids": ends},
        "versions": [versions()],
    }


def _warn_of_steering(view: TargetView, ends: list[int]) -> None:
    config = getattr(view.model, "generation_config", None)
    if steering := [name for name, off in _STEERING.items() if getattr(config, name, off) not in (None, off)]:
        warn(
            f"the generation config of {view.public_name} sets {', '.join(steering)}, which these answers do "
            "not follow: they are what the model itself says"
        )
    if not ends:
        warn(f"{view.public_name} has no end-of-text id, so every answer runs to its limit and is cut there")
