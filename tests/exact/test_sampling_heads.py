"""Sampling through every head keeps the target's distribution: each draw of the head and of the rule is followed.

The harness is that of ``test_sampling``; only the proposals come from the real heads, over three tokens.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from dflash_hf.drafter.heads.draft import Block
from dflash_hf.drafter.heads.fly import FlyHead
from dflash_hf.drafter.heads.gru import GruHead
from dflash_hf.drafter.heads.markov import MarkovHead
from dflash_hf.drafter.heads.parallel import ParallelHead
from dflash_hf.drafter.heads.selector import SelectorHead
from tests.exact import test_sampling as plain
from tests.exact.test_sampling import CPU, GUESS, SIZE, exact, rule

WIDTH = 4
HEADS = {
    "parallel": lambda columns: ParallelHead(),
    "markov vanilla": lambda columns: MarkovHead(width=WIDTH, rank=2, kind="vanilla", tokens=SIZE, columns=columns),
    "markov gated": lambda columns: MarkovHead(width=WIDTH, rank=2, kind="gated", tokens=SIZE, columns=columns),
    "markov rnn": lambda columns: MarkovHead(width=WIDTH, rank=2, kind="rnn", tokens=SIZE, columns=columns),
    "gru": lambda columns: GruHead(width=WIDTH, hidden=3, bottleneck=2, columns=columns, first_corrected=2),
    "fly": lambda columns: FlyHead(width=WIDTH, inner=3, eps=1e-6),
    "selector": lambda columns: SelectorHead(width=WIDTH, rank=2, top_k=2, tokens=SIZE),
}


def proposer(name, reduced):
    """What ``propose`` of the plain harness is replaced with."""
    vocabulary = torch.tensor([2, 0]) if reduced else None
    torch.manual_seed(8)
    head = HEADS[name](2 if reduced else SIZE)
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.7)
    head.requires_grad_(False)
    hidden, embedding = torch.randn(plain.BLOCK, WIDTH), torch.randn(SIZE, WIDTH)
    to_logits = torch.linalg.lstsq(hidden[:SIZE], GUESS).solution  # slot k of the block guesses as GUESS[k] does

    def project(states):
        logits = states @ to_logits
        return logits if vocabulary is None else logits[..., vocabulary]

    def propose(acceptance, anchor, count, proposals):
        block = Block(
            hidden[None, :count], 1, torch.tensor([[anchor]]), project, lambda outputs: outputs,
            lambda ids: embedding[ids], SIZE, vocabulary,
        )  # fmt: skip
        return head.propose(block, None if proposals == "argmax" else partial(acceptance.warp, device=CPU))

    return propose


@pytest.mark.parametrize("reduced", [False, True], ids=["whole", "reduced"])
@pytest.mark.parametrize("warpers", ["none", pytest.param("repetition_penalty", marks=pytest.mark.slow)])
@pytest.mark.parametrize("proposals", ["argmax", "sampled"])
@pytest.mark.parametrize("name", sorted(HEADS))
def test_the_joint_distribution_is_plain_decodings(branches, monkeypatch, name, proposals, warpers, reduced):
    monkeypatch.setattr(plain, "propose", proposer(name, reduced))
    tally = {"drafted": 0, "accepted": 0}
    found = branches.distribution(lambda: plain.decode(rule(warpers, (2,)), proposals, tally))
    expected = exact(warpers, (2,))
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)
    for text in expected.keys() | found.keys():
        assert found.get(text, 0.0) == pytest.approx(expected.get(text, 0.0), abs=1e-6), text
    assert tally["accepted"] > 0.05 * tally["drafted"], "a drafter that is never right would prove nothing"


def test_a_q_of_the_backbone_alone_would_be_seen(branches, monkeypatch):
    """The test has teeth: a chain that hands out rows of q which do not know what was drawn is not exact."""
    propose = proposer("markov vanilla", False)

    def wrong(acceptance, anchor, count, proposals):
        draft = propose(acceptance, anchor, count, proposals)
        return type(draft)(draft.tokens, draft.outputs, q=torch.full_like(draft.q, 1 / SIZE))

    monkeypatch.setattr(plain, "propose", wrong)
    found = branches.distribution(lambda: plain.decode(rule("none", ()), "sampled", {"drafted": 0, "accepted": 0}))
    expected = exact("none", ())
    assert max(abs(found.get(text, 0.0) - weight) for text, weight in expected.items()) > 0.01
