"""What a drafter would accept on held-out answers, in one teacher-forced pass.

A greedy answer is what the target will say again, so a block at every anchor tells how many tokens that anchor's
round would accept; walking from anchor to anchor by those numbers is the decoding run, without the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.target.view import TargetView
from dflash_hf.training.anchors import valid_anchors
from dflash_hf.training.blocks import draft_hidden
from dflash_hf.training.documents import Document
from dflash_hf.training.features.features import Features, FeatureSource
from dflash_hf.training.packs import make_pack

__all__ = ["Evaluation", "evaluate", "walk"]

_PROJECTED = 128  # rows that meet the whole vocabulary at a time


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Counts over whole documents; shares and means are over rounds, as a trace of real decoding gives them."""

    documents: int
    rounds: int
    committed: int  # tokens, bonus included
    ended: int  # rounds that the end of the answer cut short
    committed_by_ended: int
    accepted: tuple[int, ...]  # rounds that accepted slot 1, 2, ...

    @property
    def tau(self) -> float:
        """Committed tokens per round, the last round of a document counted."""
        return self.committed / max(self.rounds, 1)

    @property
    def tau_whole(self) -> float:
        """The same without rounds that the end of the answer cut short."""
        return (self.committed - self.committed_by_ended) / max(self.rounds - self.ended, 1)

    @property
    def accepted_by_position(self) -> list[float]:
        """Share of rounds that accepted slot 1, 2, ..."""
        return [count / max(self.rounds, 1) for count in self.accepted]

    def summed(self, add: Callable[[list[float]], list[float]]) -> Evaluation:
        """The same counts after ``add`` has seen them as one flat list: sums over processes."""
        *counts, accepted = astuple(self)
        documents, rounds, committed, ended, committed_by_ended, *accepted = map(round, add([*counts, *accepted]))
        return Evaluation(documents, rounds, committed, ended, committed_by_ended, tuple(accepted))

    def row(self) -> dict[str, Any]:
        """For logs and provenance."""
        return {
            "tau": round(self.tau, 4),
            "tau_whole": round(self.tau_whole, 4),
            "rounds": self.rounds,
            "documents": self.documents,
            "accepted_by_position": [round(share, 4) for share in self.accepted_by_position],
        }


@torch.no_grad()
def evaluate(
    drafter: DFlashDrafter,
    view: TargetView,
    documents: Sequence[Document],
    features: FeatureSource,
    per_row: int = 16,
) -> Evaluation:
    """Simulated greedy decoding of ``documents``, at the drafter's own block size; its mode is put back after."""
    rounds: list[int] = []
    ended: list[int] = []
    accepted = [0] * drafter.config.num_draft_tokens
    training = drafter.training
    drafter.eval()
    try:
        for document in documents:
            anchors = valid_anchors(document)
            lengths = _accepted(drafter, view, document, features.of([document])[0], anchors, per_row)
            for place, step in walk(lengths):
                rounds.append(step)
                if step <= int(lengths[place]):
                    ended.append(step)
                for slot in range(min(int(lengths[place]), step)):
                    accepted[slot] += 1
    finally:
        drafter.train(training)
    return Evaluation(len(documents), len(rounds), sum(rounds), len(ended), sum(ended), tuple(accepted))


def walk(accepted: Tensor) -> list[tuple[int, int]]:
    """Anchor and committed tokens of every round, for accepted drafts [n] at n anchors; the last has one successor.

    >>> walk(torch.tensor([1, 0, 2, 0, 0]))
    [(0, 2), (2, 3)]
    """
    place, rounds = 0, []
    while place < len(accepted):
        step = min(int(accepted[place]) + 1, len(accepted) - place)
        rounds.append((place, step))
        place += step
    return rounds


def _accepted(
    drafter: DFlashDrafter,
    view: TargetView,
    document: Document,
    features: Features,
    anchors: Tensor,
    per_row: int,
) -> Tensor:  # [n], drafts accepted at each anchor
    """The head is the costly part, so a slot is asked for only where all slots before it were right.

    There its own proposals are the answer's tokens: a head that follows them is given those, slot by slot.
    """
    config = drafter.config
    pack = make_pack(
        [document],
        [features],
        [anchors],
        slots=config.block_size,
        mask_token_id=config.mask_token_id,
        first_slot=config.first_slot,
    )
    hidden = draft_hidden(drafter, view, pack.to(drafter.device), form="chunked", per_row=per_row)
    before, generator = pack.before.to(drafter.device), DFlashCandidateGenerator(drafter, view)
    accepted = torch.zeros(len(anchors), dtype=torch.long)
    alive = torch.arange(len(anchors))
    for slot in range(config.num_draft_tokens):
        right = [
            _proposed(generator, hidden[part], slot, before[part, slot]).cpu() == pack.labels[part, slot]
            for part in alive.split(_PROJECTED)
        ]
        alive = alive[torch.cat(right)] if right else alive
        accepted[alive] += 1
    return accepted


def _proposed(generator: DFlashCandidateGenerator, hidden: Tensor, slot: int, before: Tensor) -> Tensor:
    """What the drafter's own head proposes [n] in a slot of n blocks [n, K, D] after the tokens ``before`` [n]."""
    block = generator.block(hidden, before[:, None])
    alone = replace(block, hidden_states=block.hidden_states[:, slot : slot + 1])
    return generator.drafter.head.propose(alone).tokens[:, 0]
