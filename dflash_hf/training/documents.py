"""What a run trains on and what it holds back: answers as documents, and which of them a step takes.

Everything here is a pure function of the answers and a seed, so a resumed run, and a run of several processes, sees
the documents a single unbroken one would. Shapes: S tokens of a document.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from dflash_hf.errors import TrainingError
from dflash_hf.training.answers.answers import Answer

__all__ = [
    "Corpus",
    "Document",
    "corpus_of",
    "documents_of",
    "fingerprint",
    "mixed",
    "places_of_step",
    "prompt_of",
    "prompts_fingerprint",
]


@dataclass(frozen=True, slots=True)
class Document:
    """One prompt with its answer."""

    id: str
    ids: Tensor  # int64 [S]
    prompt_length: int
    source: str = ""

    @property
    def answer_length(self) -> int:
        return len(self.ids) - self.prompt_length


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents split once and for all by their prompt, and why answers are not among them."""

    training: list[Document]
    held_out: list[Document]
    left_out: Counter[str] = field(default_factory=Counter)  # reason -> answers
    cut: int = 0  # documents cut at the limit

    @property
    def answer_tokens(self) -> int:
        """Tokens of the training answers."""
        return sum(document.answer_length for document in self.training)


def corpus_of(answers: Iterable[Answer], *, max_length: int, held_out: int) -> Corpus:
    """Documents of at most ``max_length`` tokens; those of about every ``held_out``-th prompt are for evaluation.

    The split goes by the prompt's tokens alone: answers to one prompt never stand on both sides, and more data moves
    no prompt to the other. Those held out are in the order of :func:`mixed`.

    Raises:
        TrainingError: nothing is left to train on.
    """
    corpus, cut = Corpus([], []), 0
    for answer in answers:
        if reason := _unusable(answer, max_length):
            corpus.left_out[reason] += 1
            continue
        cut += len(answer.prompt_ids) + len(answer.answer_ids) > max_length
        aside = held_out and _number(answer.prompt_ids) % held_out == 0
        (corpus.held_out if aside else corpus.training).append(_document(answer, max_length))
    if not corpus.training:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in corpus.left_out.items())
        raise TrainingError(f"no document is left to train on ({reasons or f'{len(corpus.held_out)} are held out'})")
    return Corpus(corpus.training, mixed(corpus.held_out), corpus.left_out, cut)


def mixed(documents: Iterable[Document]) -> list[Document]:
    """In the order of a hash of their prompts: any first part is of all sources, whatever the folders and ids.

    It is another hash than the one that splits a corpus, and more data puts new prompts between the old ones.
    """
    return sorted(documents, key=lambda document: hashlib.sha256(b"mixed" + prompt_of(document)).digest())


def documents_of(answers: Iterable[Answer], *, max_length: int) -> list[Document]:
    """All answers that can be documents, none held out."""
    return [_document(answer, max_length) for answer in answers if not _unusable(answer, max_length)]


def _unusable(answer: Answer, max_length: int) -> str:
    if len(answer.prompt_ids) + 2 > max_length:
        return f"prompt leaves no room within max_length={max_length}"
    return "answer of fewer than two tokens" if len(answer.answer_ids) < 2 else ""


def _document(answer: Answer, max_length: int) -> Document:
    ids = torch.tensor([*answer.prompt_ids, *answer.answer_ids])[:max_length]
    return Document(answer.id, ids, len(answer.prompt_ids), answer.source)


def places_of_step(step: int, per_step: int, count: int, seed: int) -> list[tuple[int, int]]:
    """The ``(epoch, place)`` of the documents of a step: epochs follow each other, each in an order of its own.

    >>> places_of_step(0, 3, 2, seed=0)[2][0]
    1
    """
    epochs = [divmod(step * per_step + number, count) for number in range(per_step)]
    return [(epoch, _order(count, epoch, seed)[place]) for epoch, place in epochs]


@lru_cache(maxsize=2)
def _order(count: int, epoch: int, seed: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}-{epoch}").shuffle(order)
    return order


def fingerprint(documents: Sequence[Document]) -> str:
    """A hash of ids and tokens in this order: a run goes on only over the documents it began with."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.id}\0{document.prompt_length}\0".encode())
        digest.update(document.ids.numpy().tobytes())
    return digest.hexdigest()


def prompt_of(document: Document) -> bytes:
    """The tokens of its prompt, to compare by."""
    return document.ids[: document.prompt_length].numpy().tobytes()


def prompts_fingerprint(documents: Sequence[Document]) -> str:
    """A hash of the prompts' tokens, whatever their order: which questions a figure was measured on."""
    prompts = sorted(map(prompt_of, documents))
    return hashlib.sha256(b"\0".join(prompts)).hexdigest()


def _number(ids: Sequence[int]) -> int:
    """A number that depends on the tokens alone, on every machine."""
    return int.from_bytes(hashlib.sha256(",".join(map(str, ids)).encode()).digest()[:8], "big")
