"""The probabilities in a trace, against one forward over the finished text."""

from __future__ import annotations

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from dflash_hf.options import DFlashOptions
from tests.exact.same import drafter_for
from tests.tiny import greedy, prompt, tiny_target

OPTIONS = DFlashOptions(trace_probabilities=True)


class Never(StoppingCriteria):
    """Unknown to the product, so that each token is looked at by itself."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("stepwise", [False, True], ids=["vectorised", "stepwise"])
@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["all", "none", "spoiled"])
@torch.no_grad()
def test_p_of_every_committed_token_is_the_targets(kind, do_sample, stepwise):
    model, ids = tiny_target(), prompt()
    drafter = drafter_for(model, greedy(model, ids, 40), kind)
    torch.manual_seed(0)
    criteria = StoppingCriteriaList([Never()] if stepwise else [])
    call = {"do_sample": do_sample, "top_k": 0, "max_new_tokens": 20, "stopping_criteria": criteria}
    sequence = generate(model, ids, assistant=drafter, dflash=OPTIONS, **call)
    trace = last_trace()
    assert ("stepwise" in trace.acceptance) is stepwise
    logs = model(sequence).logits[0].log_softmax(-1)
    p = logs[:-1].gather(1, sequence[0, 1:, None]).exp().flatten()[ids.shape[1] - 1 :].tolist()
    found = [trace.first_token_p]
    for record in trace.rounds:
        found += record.target_p[: record.accepted] + ([] if record.bonus is None else [record.bonus_p])
    assert found == pytest.approx(p, abs=1e-5)
    assert len(set(found)) > 10, "else one number could stand for all"


@pytest.mark.parametrize("stepwise", [False, True], ids=["vectorised", "stepwise"])
def test_a_round_without_an_own_token_has_no_p_of_one(stepwise):
    model, ids = tiny_target(), prompt()
    text = greedy(model, ids, 40)
    end = int(text[0, ids.shape[1] + 3])
    criteria = StoppingCriteriaList([Never()] if stepwise else [])
    call = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": end, "stopping_criteria": criteria}
    generate(model, ids, assistant=drafter_for(model, text, "all"), dflash=OPTIONS, **call)
    last = last_trace().rounds[-1]
    assert last.bonus is None and last.bonus_p is None and last.target_p is not None


def test_p_is_recorded_only_when_asked_for():
    model, ids = tiny_target(), prompt()
    generate(model, ids, assistant=drafter_for(model, greedy(model, ids, 40), "spoiled"), max_new_tokens=12)
    trace = last_trace()
    assert trace.first_token_p is None and {record.bonus_p for record in trace.rounds} == {None}
