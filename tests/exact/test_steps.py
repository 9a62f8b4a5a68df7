"""What is taken a block at a time: those processors read the scores alone, row by row, and change nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as host
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from dflash_hf.generation.steps import _POSITION_FREE, end_of_text_ids, length_limit, needs_steps
from tests.exact.processor_rows import CONSTRUCTED

INF = float("inf")
FRACTION = st.floats(0.01, 0.99)
MADE = {
    host.EpsilonLogitsWarper: FRACTION,
    host.EtaLogitsWarper: FRACTION,
    host.InfNanRemoveLogitsProcessor: None,
    host.LogitNormalization: None,
    host.MinPLogitsWarper: FRACTION,
    host.SuppressTokensLogitsProcessor: st.lists(st.integers(0, 8), min_size=1, max_size=3),
    host.TemperatureLogitsWarper: FRACTION,
    host.TopHLogitsWarper: FRACTION,
    host.TopKLogitsWarper: st.integers(1, 9),
    host.TopPLogitsWarper: FRACTION,
    host.TypicalLogitsWarper: FRACTION,
}
# Few values, so that ties abound; the filters of an earlier processor leave -inf, and 1e-8 apart is a tie in softmax.
NUMBERS = st.sampled_from([-INF, -3.0, -1.0, 0.0, 1e-8, 0.5, 0.5000001, 2.0, 9.0, 40.0])


def rows_of(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Tensor]:
    """Scores [K, V] for up to four places of a vocabulary of up to nine."""
    return st.tuples(st.integers(1, 4), st.integers(2, 9)).flatmap(
        lambda shape: st.lists(
            st.lists(numbers, min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
        ).map(torch.tensor)
    )


def assert_rows_stand_alone(processor, scores):
    """At once = row by row, whatever the ids are; the argument stays as it was, and no call leaves a trace."""
    ids, before = torch.arange(5)[None], scores.clone()
    at_once = processor(ids, scores)
    assert torch.equal(scores.nan_to_num(7.5), before.nan_to_num(7.5))
    for place, row in enumerate(scores):
        other_ids = torch.full((1, place + 1), place)
        torch.testing.assert_close(
            processor(other_ids, row[None]), at_once[place, None], rtol=0, atol=0, equal_nan=True
        )
    torch.testing.assert_close(processor(ids, scores), at_once, rtol=0, atol=0, equal_nan=True)


def test_every_class_of_the_table_is_tried_here():
    assert set(MADE) == _POSITION_FREE


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_block_at_once_is_what_its_rows_are(kind, data):
    scores = data.draw(rows_of(NUMBERS))
    assume((scores > -INF).any(dim=-1).all())
    argument = MADE[kind]
    if kind is host.InfNanRemoveLogitsProcessor:
        scores = torch.where(scores == 40.0, INF, torch.where(scores == 9.0, float("nan"), scores))
    if kind is host.SuppressTokensLogitsProcessor:
        scores = torch.nn.functional.pad(scores, (0, 9), value=0.25)
    assert_rows_stand_alone(kind() if argument is None else kind(data.draw(argument)), scores)


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_a_block_at_once_is_what_its_rows_are_with_a_real_vocabulary(kind):
    """Wide enough for the other kernels of sort, topk and sum; rounded as bfloat16 logits are, so that ties abound."""
    scores = 4 * torch.randn(8, 50_000, generator=torch.Generator().manual_seed(0))
    values = {host.SuppressTokensLogitsProcessor: [7, 9], host.TopKLogitsWarper: 40, host.EpsilonLogitsWarper: 1e-5}
    processor = kind() if MADE[kind] is None else kind(values.get(kind, 0.3))
    for each in (scores, scores.bfloat16().float()):
        assert_rows_stand_alone(processor, each)


@pytest.mark.parametrize("name", sorted(CONSTRUCTED))
def test_a_processor_outside_the_table_is_walked(name):
    kind = CONSTRUCTED[name]
    assert needs_steps([kind.__new__(kind)], []) == (kind not in MADE)


def test_only_exact_types_are_taken_at_once():
    class Hotter(host.TemperatureLogitsWarper):
        pass

    class Longer(MaxLengthCriteria):
        pass

    assert not needs_steps([host.TemperatureLogitsWarper(2.0)], [MaxLengthCriteria(9), EosTokenCriteria(3)])
    assert needs_steps([Hotter(2.0)], [])
    assert needs_steps([], [Longer(9)])
    assert needs_steps([], [MaxTimeCriteria(9.0)])


def test_ends_and_the_limit_are_read_from_the_criteria():
    criteria = [MaxLengthCriteria(9), EosTokenCriteria([3, 5]), EosTokenCriteria(torch.tensor(7)), MaxLengthCriteria(8)]
    assert end_of_text_ids(criteria) == {3, 5, 7}
    assert length_limit(criteria) == 8
    assert length_limit([]) is None
