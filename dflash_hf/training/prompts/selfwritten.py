"""Prompts written by the target itself: given the header of a user's turn, a chat model writes a user's request.

No data set is needed, and the requests are of the kind the target knows. (The idea: Magpie, arXiv 2406.08464.)
What request ``n`` draws depends on the seed and on ``n`` alone, not on its batch. A batch of another size rounds
otherwise, so at a near tie its text may differ; a resumed run repeats whole batches and writes the same to the letter.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from dflash_hf.errors import OptionsError, TrainingError
from dflash_hf.target.view import TargetView
from dflash_hf.training.prompts.chat import chat_fingerprint, opening_ids, special_ids, turn_end, user_turn_ids
from dflash_hf.training.prompts.prompts import Prompt
from dflash_hf.training.prompts.request_log import RequestLog, WrittenRequest

__all__ = ["Answerer", "Writer", "Writing", "row_seed"]


class Answerer(Protocol):
    """Batched sampling, as ``training.answering.answer_batch`` does it: per prompt its new ids and whether it ended."""

    def __call__(
        self,
        view: TargetView,
        prompts: Sequence[Sequence[int]],
        *,
        eos_ids: Sequence[int],
        max_new_tokens: int,
        temperature: float,
        top_p: float,
        seeds: Sequence[int],
    ) -> Sequence[tuple[Sequence[int], bool]]: ...


@dataclass(frozen=True, slots=True)
class Writing:
    """How requests are written.

    Args:
        seed: of all draws.
        temperature: above 0; at 0 all requests would be the same.
        top_p: share of the probability that is drawn from.
        max_new_tokens: a request not finished by then is dropped.
        openings: texts that requests begin with, dealt out in turn; "" leaves the beginning to the target.
        batch_size: requests written at once.

    Raises:
        OptionsError: a value is out of range.
    """

    seed: int = 0
    temperature: float = 1.0
    top_p: float = 0.95
    max_new_tokens: int = 256
    openings: tuple[str, ...] = ("",)
    batch_size: int = 64

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise OptionsError(f"at temperature {self.temperature} all requests would be the same; give one above 0")
        if not 0 < self.top_p <= 1:
            raise OptionsError(f"top_p is above 0 and at most 1, got {self.top_p}")
        if not self.openings:
            raise OptionsError("requests need an opening; an empty one leaves the beginning to the target")
        for name in ("max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise OptionsError(f"{name} is at least 1, got {getattr(self, name)}")


def row_seed(seed: int, number: int) -> int:
    """Seed of request ``number``: 63 bits that share nothing visible with its neighbours'."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:8], "big") >> 1


class Writer:
    """Writes requests with one target.

    Args:
        view: the target.
        tokenizer: its tokenizer, with a chat template.
        writing: settings.
        answer: batched sampling.

    Raises:
        TrainingError: there is no chat template, it cannot be continued, or nothing would end a request.
    """

    def __init__(self, view: TargetView, tokenizer: Any, writing: Writing, answer: Answerer) -> None:
        self._view, self._tokenizer, self._writing, self._answer = view, tokenizer, writing, answer
        self._header = user_turn_ids(tokenizer)
        self._starts = [opening_ids(tokenizer, opening) for opening in writing.openings]
        end, self._end_text = turn_end(tokenizer)
        self._special = special_ids(tokenizer)
        ends = getattr(view.model.generation_config, "eos_token_id", None)
        listed = ends if isinstance(ends, list) else [ends]
        self._ends = sorted({int(each) for each in (*listed, tokenizer.eos_token_id, end) if each is not None})
        if not self._ends and not self._end_text:
            raise TrainingError(
                f"nothing ends a user's turn of {view.public_name}: neither its template nor an end-of-text id; "
                "take prompts from a file instead"
            )
        if self._ends and not all(0 <= each < view.vocab_rows for each in self._ends):
            raise TrainingError(
                f"{view.public_name} has ids below {view.vocab_rows}, its tokenizer ends a turn with {self._ends}: "
                "they do not belong together"
            )

    def description(self) -> dict[str, Any]:
        """What decides the text of request ``n``; the batch size does not."""
        settings = {key: value for key, value in asdict(self._writing).items() if key != "batch_size"}
        starts = hashlib.sha256(repr(self._starts).encode()).hexdigest()
        chat = chat_fingerprint(self._tokenizer)
        return {"target": self._view.public_name, **settings, "openings": list(self._writing.openings), **chat,
                "starts_sha256": starts}  # fmt: skip

    def requests(self, log: RequestLog | None = None) -> Iterator[WrittenRequest]:
        """Requests 0, 1, 2 ... without end. Those in the log are not written again; new ones are added to it."""
        known = log.read() if log else {}
        size = self._writing.batch_size
        for number in itertools.count():
            if number not in known:  # the whole batch again, so that it is the same arithmetic as in an unbroken run
                first = number - number % size
                written = [each for each in self._write(range(first, first + size)) if each.number not in known]
                if log:
                    log.append(written)
                known |= {each.number: each for each in written}
            yield known[number]

    def prompt(self, request: WrittenRequest) -> Prompt:
        name = f"self-{self._writing.seed}-{request.number}"
        return Prompt(name, ({"role": "user", "content": request.text},), "target")

    def _write(self, numbers: Sequence[int]) -> list[WrittenRequest]:
        writing = self._writing
        starts = [self._starts[number % len(self._starts)] for number in numbers]
        answers = self._answer(
            self._view,
            starts,
            eos_ids=self._ends,
            max_new_tokens=writing.max_new_tokens,
            temperature=writing.temperature,
            top_p=writing.top_p,
            seeds=[row_seed(writing.seed, number) for number in numbers],
        )
        return [
            self._request(number, start, list(ids), ended)
            for number, start, (ids, ended) in zip(numbers, starts, answers, strict=True)
        ]

    def _request(self, number: int, start: list[int], ids: list[int], ended: bool) -> WrittenRequest:
        opening = self._writing.openings[number % len(self._starts)]
        if ended and ids and ids[-1] in self._ends:
            ids = ids[:-1]
        text = self._tokenizer.decode(
            [*start[len(self._header) :], *ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
        ).lstrip()
        if self._end_text and self._end_text in text:
            text, ended = text.partition(self._end_text)[0], True
        if not ended:
            return WrittenRequest(number, text, f"not finished after {self._writing.max_new_tokens} tokens")
        if any(each in self._special for each in ids):
            return WrittenRequest(number, text, "special token inside")
        if not text.startswith(opening):
            return WrittenRequest(number, text, "not as its opening")
        text = text.strip()
        return WrittenRequest(number, text, "nothing after its opening" if opening and text == opening.strip() else "")
