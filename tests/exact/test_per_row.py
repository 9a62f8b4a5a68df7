"""Rows decoded one after another: each gets processors that do for it what the host's do for the batch."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import logits_process as host
from transformers.generation.stopping_criteria import ConfidenceCriteria, EosTokenCriteria, MaxLengthCriteria

from dflash_hf.generation import per_row
from dflash_hf.generation.per_row import processors_for_row, several_rows_refusal
from tests.exact.processor_rows import CONSTRUCTED, NEW, WORKING, only_every_fifth
from tests.tiny import VOCAB, prompt, tiny_target

ROWS = 4
IDS = torch.cat([prompt(seed=seed) for seed in range(ROWS)])


@pytest.fixture(scope="module")
def model():
    return tiny_target()


def assert_rows_get_what_the_batch_gives(batch, mine, starts, steps=NEW):
    """``mine`` row by row = ``batch`` on all rows, over ``steps`` lengths from ``starts`` [ROWS, S] on."""
    generator = torch.Generator().manual_seed(0)
    later = torch.randint(2, VOCAB, (len(starts), steps), generator=generator)
    later[:, 1::3] = starts[:, -1:]  # some tokens, and pairs, again
    scores = 3 * torch.randn(steps, len(starts), VOCAB, generator=generator)
    expected = [batch(torch.cat([starts, later[:, :step]], dim=1), scores[step].clone()) for step in range(steps)]
    changed = 0
    for row in range(len(starts)):
        own = processors_for_row(mine, row, len(starts))
        for step in range(steps):
            ids = torch.cat([starts, later[:, :step]], dim=1)[row : row + 1]
            given = own(ids, scores[step, row : row + 1].clone())
            torch.testing.assert_close(given, expected[step][row : row + 1], rtol=0, atol=0)
            changed += not torch.equal(given, scores[step, row : row + 1])
    assert changed, "a processor that never did anything proves nothing"


def test_every_class_of_transformers_is_shared_adapted_or_refused():
    tables = [per_row._SHARED, set(per_row._ADAPTED), set(per_row._REFUSED)]
    assert set(CONSTRUCTED) <= set().union(*tables)
    assert sum(len(table) for table in tables) == len(set().union(*tables)), "each in one table"


@pytest.mark.parametrize(
    "row", [row for row in WORKING if row.door == "instance" and row.name not in per_row._REFUSED], ids=str
)
def test_a_row_gets_what_the_batch_gives(model, row):
    if row.missing is not None:
        pytest.skip(row.missing)
    first = row.ids(model)
    starts = torch.cat([first.roll(place, dims=1) for place in range(ROWS)])
    batch, mine = (row.call(model)["logits_processor"] for _ in range(2))
    scores_of = host.LogitsProcessorList([host.SuppressTokensLogitsProcessor([45])])  # work for InfNanRemove
    if row.name == "InfNanRemoveLogitsProcessor":
        batch, mine = (LogitsProcessorList([*scores_of, *each]) for each in (batch, mine))
    assert several_rows_refusal(mine, []) is None
    assert_rows_get_what_the_batch_gives(batch, mine, starts)


def adapted():
    """What the host builds for a batch of four rows: one prompt each, or two prompts with two sequences each."""
    seen = {}

    def by_row(row, ids):
        seen.setdefault(row, []).append(ids.tolist())
        return [(7 * row + len(ids)) % VOCAB, 3 * row, 90]

    makers = {
        "encoder ngrams": lambda prompts: host.EncoderNoRepeatNGramLogitsProcessor(2, prompts),
        "encoder penalty": lambda prompts: host.EncoderRepetitionPenaltyLogitsProcessor(3.0, prompts),
        "penalty": lambda prompts: host.RepetitionPenaltyLogitsProcessor(1.7),
        "constraint": lambda prompts: host.PrefixConstrainedLogitsProcessor(by_row, ROWS // len(prompts)),
    }
    if "Tensor" in str(host.RepetitionPenaltyLogitsProcessor.__init__.__annotations__):
        makers["penalty after padding"] = lambda prompts: host.RepetitionPenaltyLogitsProcessor(
            1.7, prompt_ignore_length=torch.tensor([0, 3, 7, 1])
        )
    return makers


@pytest.mark.parametrize("prompts", [4, 2, 1])
@pytest.mark.parametrize("name", adapted())
def test_what_knows_the_batch_is_cut_to_the_row(name, prompts):
    starts = IDS[:prompts].repeat_interleave(ROWS // prompts, dim=0)
    batch, mine = (LogitsProcessorList([adapted()[name](IDS[:prompts].clone())]) for _ in range(2))
    before = copy.deepcopy({key: value for key, value in vars(mine[0]).items() if not callable(value)})
    assert several_rows_refusal(mine, []) is None
    assert_rows_get_what_the_batch_gives(batch, mine, starts)
    for key, value in before.items():
        now = vars(mine[0])[key]
        assert torch.equal(now, value) if isinstance(value, torch.Tensor) else now == value, (
            "the shared one is not changed"
        )


@pytest.mark.parametrize(("sequences", "asked"), [(1, [0, 1, 2, 3]), (2, [0, 0, 1, 1]), (4, [0, 0, 0, 0])])
def test_a_constraint_is_asked_about_its_true_prompt(sequences, asked):
    rows = []

    def allowed(row, ids):
        rows.append((row, ids.tolist()))
        return [5]

    batch = LogitsProcessorList([host.PrefixConstrainedLogitsProcessor(allowed, sequences)])
    batch(IDS, torch.zeros(ROWS, VOCAB))
    plain, rows[:] = list(rows), []
    for row in range(ROWS):
        processors_for_row(batch, row, ROWS)(IDS[row, None], torch.zeros(1, VOCAB))
    assert rows == plain == list(zip(asked, IDS.tolist(), strict=True))


class _Counting(LogitsProcessor):
    """Allows one residue class after another, by the number of its calls: right for as long as it sees one text."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores.masked_fill(torch.arange(VOCAB) % 5 != self.calls % 5, -float("inf"))


class _Own(StoppingCriteria):
    def __call__(self, input_ids, scores, **_):
        return torch.zeros(len(input_ids), dtype=torch.bool)


def _stop_string():
    return StopStringCriteria.__new__(StopStringCriteria)


REFUSED = {
    "_Counting": ([_Counting()], []),
    "only_every_fifth": ([only_every_fifth], []),
    "Hotter": ([type("Hotter", (host.TemperatureLogitsWarper,), {})(2.0)], []),
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": (
        [host.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, None)], [],
    ),
    "_Own": ([], [EosTokenCriteria(3), _Own()]),
    "MaxTimeCriteria": ([], [MaxTimeCriteria(3.0)]),
    "ConfidenceCriteria": ([], [ConfidenceCriteria(0.5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused_by_name_with_the_way_out(name):
    reason = several_rows_refusal(*REFUSED[name])
    assert name in reason and "pass one row per call" in reason


@pytest.mark.parametrize("name", sorted(per_row._REFUSED))
def test_every_class_of_the_refused_table_is_refused(name):
    if name not in CONSTRUCTED:
        pytest.skip(f"this transformers has no {name}; runs on 5.24 (make test)")
    kind = CONSTRUCTED[name]
    assert f"{name} with several rows" in several_rows_refusal([kind.__new__(kind)], [])


def test_the_hosts_own_criteria_are_not_refused():
    criteria = StoppingCriteriaList([MaxLengthCriteria(9), EosTokenCriteria(3), _stop_string()])
    assert several_rows_refusal(LogitsProcessorList(), criteria) is None


def test_why_a_users_processor_is_refused(model):
    """Shared by rows decoded one after another, what it keeps of row 0 poisons row 1."""

    def run(ids, processor):
        call = {"max_new_tokens": 7, "do_sample": False, "logits_processor": LogitsProcessorList([processor])}
        return model.generate(ids, **call)

    plain, shared = run(IDS[:2], _Counting()), _Counting()
    one_after_another = [run(IDS[row, None], shared) for row in range(2)]
    assert torch.equal(one_after_another[0][0], plain[0])
    assert not torch.equal(one_after_another[1][0], plain[1])
    assert torch.equal(run(IDS[1, None], _Counting())[0], plain[1]), "the way out: a call of its own for each row"
