"""Every dialect through public ``generate``: the text is plain greedy's, the drafts are the slow reference's, and
sampling draws where a head is sequential, handing out a q.

Target and drafters have four likely tokens only, so that some drafts are kept and some are lost.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dflash_hf
from dflash_hf.drafter.heads.draft import Draft
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from tests.checkpoints.cases import CASES
from tests.checkpoints.reference import dialects
from tests.checkpoints.slow_target import Pair, listen, load, make_pair
from tests.checkpoints.tiny_dialects import VOCAB, Checkpoint, reduced_ids
from tests.tiny import greedy, prompt

LIKELY = reduced_ids()[2::6].tolist()
NEW = 12
# Windows, scales and spellings are numbers, which test_dialect_maths.py compares; one of each dialect and head is here.
SAME_PATH = ("sliding", "scales", "not causal", "whole", "narrow", "older", "granite", "sparse", "as dspark", "nothing")
TEXTS = [case for case in sorted(CASES) if not any(words in case for words in SAME_PATH)]
PROMPT = prompt(7)


def only_likely(rows: Tensor, ids: Tensor) -> Tensor:
    """An LM head's ``rows``, of which those of unlikely ids are small; none are alike, so that nothing ties."""
    return rows * torch.where(torch.isin(ids, torch.tensor(LIKELY)), 1.0, 0.1)[:, None]


@cache
def easy_pair(kind: str) -> Pair:
    """A target whose text consists of the likely tokens."""

    def change(model) -> None:
        head = model.get_output_embeddings().weight
        head.data = only_likely(head.data, torch.arange(VOCAB))

    both = make_pair(kind, change)
    dflash_hf.attach(both.model)
    return both


def easy(checkpoint: Checkpoint) -> Checkpoint:
    """The same in what a drafter adds or brings along."""
    tensors = dict(checkpoint.tensors)
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"] if "d2t" in tensors else torch.arange(VOCAB)
    for name in tensors:
        if name.endswith(("lm_head.weight", "markov_w2.weight", "embed_proj.2.weight")):
            tensors[name] = only_likely(tensors[name], ids)
    return replace(checkpoint, tensors=tensors)


@pytest.mark.parametrize("case", TEXTS)
def test_generate_gives_plain_greedy_text_and_the_references_drafts(case: str, tmp_path: Path) -> None:
    checkpoint = easy(CASES[case]())
    both, drafter = easy_pair(checkpoint.target), load(checkpoint, tmp_path)
    plain = greedy(both.model, PROMPT, NEW)
    drafted = both.model.generate(PROMPT, assistant=drafter, max_new_tokens=NEW, do_sample=False)
    assert drafted.tolist() == plain.tolist()
    slow, run = getattr(dialects, checkpoint.reading)(checkpoint.config, checkpoint.tensors), listen(both.model, plain)
    anchor, compared = PROMPT.shape[1], 0
    for record in dflash_hf.last_trace().rounds:
        if record.drafted:
            _rows, ids = slow.draft(both.slow, run, anchor)
            assert record.drafted == ids[: len(record.drafted)], f"anchor at {anchor}"
            compared += 1
        anchor += record.accepted + 1 if record.drafted else 0
    assert compared >= 3


def test_some_drafts_are_kept_and_some_are_lost(tmp_path: Path) -> None:
    """The test above has rounds of every kind."""
    kept = set()
    for case in ("zlab", "dspark specforge", "speculators dflash", "dflash2"):
        checkpoint = easy(CASES[case]())
        both, drafter = easy_pair(checkpoint.target), load(checkpoint, tmp_path / case)
        both.model.generate(PROMPT, assistant=drafter, max_new_tokens=NEW, do_sample=False)
        kept |= {min(record.accepted, 2) for record in dflash_hf.last_trace().rounds if record.drafted}
    assert kept >= {0, 1}


@pytest.mark.parametrize("case", TEXTS)
def test_sampling_draws_from_a_q_where_slots_know_what_was_drawn(case: str, tmp_path: Path, monkeypatch) -> None:
    checkpoint, seen = easy(CASES[case]()), list[Draft]()
    both, drafter = easy_pair(checkpoint.target), load(checkpoint, tmp_path)
    propose = DFlashCandidateGenerator.propose

    def recorded(*args, **kwargs) -> Draft:
        seen.append(propose(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(DFlashCandidateGenerator, "propose", recorded)
    torch.manual_seed(0)
    text = both.model.generate(PROMPT, assistant=drafter, max_new_tokens=6, do_sample=True, temperature=0.8)
    assert text.shape[1] == PROMPT.shape[1] + 6 and seen
    for draft in seen:
        assert (draft.q is not None) == drafter.head.sequential
        if draft.q is None:
            continue
        torch.testing.assert_close(draft.q.sum(-1), torch.ones(draft.q.shape[:2]))
        assert (draft.q[0].gather(1, draft.tokens[0][:, None]) > 0).all()
        if "d2t" in checkpoint.tensors:
            ids = torch.arange(VOCAB)
            assert not draft.q[0][:, ~torch.isin(ids, drafter.vocabulary)].any(), "nothing outside the reduced head"
