"""Sampling keeps the target's distribution, exactly: every outcome of every draw is followed, and its weight added up.

No sampling noise: the draws of the acceptance rule are replaced by branches. The target is a table over three tokens
whose next token depends on the last two; the drafter guesses near it, so that acceptance is real.
"""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import logits_process as processes
from transformers.generation import stopping_criteria as criteria

from dflash_hf.drafter.heads.draft import Block
from dflash_hf.drafter.heads.parallel import ParallelHead
from dflash_hf.generation import accept
from dflash_hf.generation.acceptance import Acceptance

SIZE, PROMPT, NEW, BLOCK = 3, (0, 1), 4, 4
CPU = torch.device("cpu")
WARPERS = {
    "none": lambda: [],
    "temperature": lambda: [processes.TemperatureLogitsWarper(0.6)],
    "top_k": lambda: [processes.TopKLogitsWarper(2)],
    "top_p": lambda: [processes.TopPLogitsWarper(0.75)],
    "min_p": lambda: [processes.MinPLogitsWarper(0.3)],
    "typical": lambda: [processes.TypicalLogitsWarper(0.6)],
    "epsilon": lambda: [processes.EpsilonLogitsWarper(0.2)],
    "eta": lambda: [processes.EtaLogitsWarper(0.3)],
    "top_h": lambda: [processes.TopHLogitsWarper(0.5)],
    "several": lambda: [processes.TemperatureLogitsWarper(1.4), processes.TopKLogitsWarper(2)],
    "repetition_penalty": lambda: [processes.RepetitionPenaltyLogitsProcessor(1.7)],
    "no_repeats": lambda: [processes.NoRepeatNGramLogitsProcessor(2)],
    "bias_and_top_p": lambda: [
        processes.SequenceBiasLogitsProcessor([[[1, 2], 1.5], [[0], -0.5]]), processes.TopPLogitsWarper(0.8),
    ],
    "counting": lambda: [_Counting()],
}  # fmt: skip


class _Counting(processes.LogitsProcessor):
    """Keeps state of its own: exact only if it sees each committed place once, in order."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        assert input_ids.shape[1] == len(PROMPT) + self.calls
        self.calls += 1
        return scores + torch.eye(SIZE)[self.calls % SIZE]


TABLE = torch.randn(SIZE, SIZE, SIZE, generator=torch.Generator().manual_seed(4)) * 1.2
GUESS = TABLE.mean(0) + 0.5 * torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(5))


def logits_after(ids):
    return TABLE[ids[-2], ids[-1]].clone()


def config():
    return GenerationConfig(do_sample=True, max_length=len(PROMPT) + NEW, eos_token_id=None)


def rule(name, ends):
    stops = [criteria.MaxLengthCriteria(len(PROMPT) + NEW)]
    stops += [criteria.EosTokenCriteria(torch.tensor(ends))] if ends else []
    processors = processes.LogitsProcessorList(WARPERS[name]())
    return Acceptance(processors, criteria.StoppingCriteriaList(stops), config())


def decode(acceptance, proposals, tally):
    """The loop of `generation.sequential` over the table instead of networks."""
    ids = torch.tensor([PROMPT])
    verdict = acceptance.verdict(ids, logits_after(ids[0].tolist())[None], None)
    ids = torch.cat([ids, verdict.ids], dim=1)
    while not verdict.done:
        count = min(BLOCK - 1, acceptance.limit - ids.shape[1] - 1)
        draft = propose(acceptance, int(ids[0, -1]), count, proposals) if count else None
        path = ids[0].tolist() + ([] if draft is None else draft.tokens[0].tolist())
        logits = torch.stack([logits_after(path[: ids.shape[1] + place]) for place in range(count + 1)])
        verdict = acceptance.verdict(ids, logits, draft)
        ids = torch.cat([ids, verdict.ids], dim=1)
        tally["drafted"] += count
        tally["accepted"] += verdict.accepted
    return tuple(ids[0, len(PROMPT) :].tolist())


def propose(acceptance, anchor, count, proposals):
    """A guess for each slot from the anchor alone, as a block of independent slots is."""
    logits = GUESS[[(anchor + slot) % SIZE for slot in range(count)]]
    block = Block(
        logits[None], 1, torch.tensor([[anchor]]), project=lambda states: states, scale=lambda outputs: outputs,
        embed=lambda ids: ids, vocab_size=SIZE,
    )  # fmt: skip
    return ParallelHead().propose(block, None if proposals == "argmax" else partial(acceptance.warp, device=CPU))


def exact(name, ends):
    """Probability of every text by plain decoding: processors anew along each path."""
    found = {}
    for text in itertools.product(range(SIZE), repeat=NEW):
        ids, weight, processors = list(PROMPT), 1.0, processes.LogitsProcessorList(WARPERS[name]())
        for token in text:
            scores = processors(torch.tensor([ids]), logits_after(ids)[None].clone())
            weight *= float(scores.double().softmax(-1)[0, token])
            ids.append(token)
            if token in ends:
                break
        found[tuple(ids[len(PROMPT) :])] = weight
    return found


@pytest.mark.parametrize("ends", [(), (2,)], ids=["no_end", "end"])
@pytest.mark.parametrize("proposals", ["argmax", "sampled"])
@pytest.mark.parametrize("name", sorted(WARPERS))
def test_the_joint_distribution_is_plain_decodings(branches, name, proposals, ends):
    tally = {"drafted": 0, "accepted": 0}
    found = branches.distribution(lambda: decode(rule(name, ends), proposals, tally))
    expected = exact(name, ends)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)
    for text in expected.keys() | found.keys():
        assert found.get(text, 0.0) == pytest.approx(expected.get(text, 0.0), abs=1e-6), text
    assert tally["accepted"] > 0.1 * tally["drafted"], "a drafter that is never right would prove nothing"


def test_a_wrong_rule_would_be_seen(branches, monkeypatch):
    """The test has teeth: forgetting to take q out of what replaces a rejected token shows."""
    monkeypatch.setattr(accept, "_without_draft", lambda p, *_: p)
    found = branches.distribution(lambda: decode(rule("none", ()), "sampled", {"drafted": 0, "accepted": 0}))
    expected = exact("none", ())
    assert max(abs(found.get(text, 0.0) - weight) for text, weight in expected.items()) > 0.01


def test_warpers_are_run_where_the_host_put_their_tensors(monkeypatch):
    """A drafter on another device than the target: here the target's is torch's "meta", which holds no numbers."""
    met = []

    def warp(self, ids, scores):
        met.append((ids.device.type, scores.device.type, self.epsilon.device.type))
        return torch.full(scores.shape, 7.0)

    monkeypatch.setattr(processes.EtaLogitsWarper, "__call__", warp)
    eta = processes.EtaLogitsWarper(0.1, device="meta")
    acceptance = Acceptance([eta], [], GenerationConfig(do_sample=True))
    warped = acceptance.warp(torch.zeros(2, SIZE), torch.device("meta"))
    assert met == [("meta", "meta", "meta")]
    assert warped.device == CPU and warped.tolist() == [[7.0] * SIZE] * 2, "back where the drafter draws"
