"""From prompts to what is to be answered, how, and in which batches. Nothing here touches a disk or runs a model.

Everything follows from the prompts and the settings alone, so that it does not matter which process answers what, nor
how often the work was broken off.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_hf.errors import OptionsError, TrainingError
from dflash_hf.target.positions import frequencies_change
from dflash_hf.target.view import TargetView
from dflash_hf.training.prompts.chat import prompt_ids
from dflash_hf.training.prompts.prompts import Prompt

__all__ = ["AnswerPlan", "AnswerSettings", "Job", "deal", "encode_prompts", "plan"]

_SHOWN = 5  # prompts named in a message


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How prompts are answered.

    Args:
        temperatures: 0 is greedy. With several, each answer has one of them, dealt by a hash of the prompt's id.
        top_p: nucleus of the draws.
        answers_per_prompt: their ids are ``"<prompt>/0"`` and so on, when more than one.
        seed: of the deal, the draws and the order of the batches.
        max_new_tokens: where an answer is cut.
        max_prompt_tokens: longest prompt; None: as long as ``max_new_tokens`` fit behind it.
        skip_long: leave longer prompts out instead of refusing them.
        thinking: the chat template's switch, for those that have one.
        batch_size: rows decoded at once. It does not change the answers, but for rounding.

    Raises:
        OptionsError: a value it cannot have, or the same greedy answer would be made twice.
    """

    temperatures: tuple[float, ...] = (0.0,)
    top_p: float = 1.0
    answers_per_prompt: int = 1
    seed: int = 0
    max_new_tokens: int = 256
    max_prompt_tokens: int | None = None
    skip_long: bool = False
    thinking: bool | None = None
    batch_size: int = 32

    def __post_init__(self) -> None:
        if not self.temperatures or min(self.temperatures) < 0 or len(set(self.temperatures)) < len(self.temperatures):
            raise OptionsError(f"temperatures must be distinct and at least 0, got {list(self.temperatures)}")
        if not 0 < self.top_p <= 1:
            raise OptionsError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        for name in ("answers_per_prompt", "max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise OptionsError(f"{name} must be at least 1, got {getattr(self, name)}")
        if 0 in self.temperatures and self.answers_per_prompt > len(self.temperatures):
            raise OptionsError(
                f"{self.answers_per_prompt} answers a prompt at {len(self.temperatures)} temperatures, one of them 0, "
                "would repeat the greedy answer; give more temperatures, or none that is 0"
            )

    def decoding(self) -> dict[str, Any]:
        """What decides what an answer says."""
        names = ("temperatures", "top_p", "answers_per_prompt", "seed", "max_new_tokens")
        return {name: getattr(self, name) for name in names} | {"temperatures": list(self.temperatures)}


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to be made."""

    id: str
    prompt_ids: tuple[int, ...]
    source: str
    temperature: float
    seed: int  # 0 for greedy


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """The work of one process."""

    prompts: int  # of all processes
    prompt_tokens: int  # of all prompts, each once
    skipped: int  # prompts that are too long
    answers: int  # of this process, those done included
    batches: tuple[tuple[Job, ...], ...]  # what is left to do

    @property
    def left(self) -> int:
        return sum(map(len, self.batches))

    @property
    def done(self) -> int:
        return self.answers - self.left


def encode_prompts(
    view: TargetView, tokenizer: Any, prompts: Sequence[Prompt], settings: AnswerSettings
) -> list[tuple[Prompt, tuple[int, ...]]]:
    """Each prompt with its ids, chat template applied; those too long are left out where the settings say so.

    Raises:
        TrainingError: no chat template; a prompt is too long; or none is left.
    """
    encoded = [
        (prompt, tuple(prompt_ids(tokenizer, prompt.messages, thinking=settings.thinking))) for prompt in prompts
    ]
    long = {
        number: len(ids)
        for number, (_, ids) in enumerate(encoded)
        if not _fits(view, len(ids), settings.max_new_tokens, settings.max_prompt_tokens)
    }
    if long and not settings.skip_long:
        named = [f"{number + 1} ({prompts[number].id}, {long[number]} tokens)" for number in list(long)[:_SHOWN]]
        more = f" and {len(long) - _SHOWN} more" if len(long) > _SHOWN else ""
        raise TrainingError(
            f"{len(long)} of {len(prompts)} prompts are too long: {', '.join(named)}{more}. {_room(view, settings)}; "
            "leave them out with --skip-long"
        )
    if len(long) == len(prompts):
        raise TrainingError(f"no prompt is left: all {len(prompts)} are too long. {_room(view, settings)}")
    return [pair for number, pair in enumerate(encoded) if number not in long]


def deal(encoded: Iterable[tuple[Prompt, tuple[int, ...]]], settings: AnswerSettings) -> list[Job]:
    """All answers that are to be made.

    Raises:
        TrainingError: two prompts have the same id.
    """
    jobs, count = [], settings.answers_per_prompt
    for prompt, ids in encoded:
        first = _number("temperature", settings.seed, prompt.id)
        for turn in range(count):
            name = prompt.id if count == 1 else f"{prompt.id}/{turn}"
            temperature = settings.temperatures[(first + turn) % len(settings.temperatures)]
            seed = _number("draw", settings.seed, name) if temperature else 0
            jobs.append(Job(name, ids, prompt.source, float(temperature), seed))
    if len({job.id for job in jobs}) < len(jobs):
        raise TrainingError("two prompts have the same id; their answers could not be told apart")
    return jobs


def plan(
    jobs: Sequence[Job], settings: AnswerSettings, shard: tuple[int, int], done: Collection[str], skipped: int
) -> AnswerPlan:
    """The batches of one process: prompts of like length, in an order that makes any first part a fair sample.

    Args:
        jobs: of all processes.
        settings: batch size and seed.
        shard: number from 0, and count.
        done: ids of answers that are on the disk.
        skipped: prompts left out.
    """
    number, count = shard
    mine = jobs[number::count]
    left = sorted((job for job in mine if job.id not in done), key=lambda job: len(job.prompt_ids))
    size = settings.batch_size
    batches = [tuple(left[first : first + size]) for first in range(0, len(left), size)]
    random.Random(settings.seed).shuffle(batches)
    prompts = len(jobs) // settings.answers_per_prompt
    tokens = sum(len(job.prompt_ids) for job in jobs) // settings.answers_per_prompt
    return AnswerPlan(prompts, tokens, skipped, len(mine), tuple(batches))


def _fits(view: TargetView, length: int, new: int, most: int | None) -> bool:
    """Whether a prompt of this length and its answer are read as the target reads short texts."""
    positions = getattr(view.text_config, "max_position_embeddings", None)
    if positions is not None and length + new > positions:
        return False
    return (most is None or length <= most) and not frequencies_change(view.text_config, length + new)


def _room(view: TargetView, settings: AnswerSettings) -> str:
    said, positions = [], getattr(view.text_config, "max_position_embeddings", None)
    if settings.max_prompt_tokens is not None:
        said.append(f"prompts may have {settings.max_prompt_tokens} tokens")
    if positions is not None:
        said.append(f"{view.public_name} has {positions} positions, {settings.max_new_tokens} are for the answer")
    if frequencies_change(view.text_config, positions or 0):
        said.append("its rotary frequencies may not change on the way")
    return "; ".join(said)


def _number(*parts: object) -> int:
    """A number below 2^48 that depends on the parts alone."""
    return int.from_bytes(hashlib.sha256("\n".join(map(str, parts)).encode()).digest()[:6])
