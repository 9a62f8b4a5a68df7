"""Greedy text equals plain decoding, token for token: every target family, every acceptance pattern, every length."""

from __future__ import annotations

import pytest
import torch

from dflash_hf.bench.judge import judge
from dflash_hf.errors import UnsupportedCallError
from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from dflash_hf.options import DFlashOptions
from dflash_hf.target.host import keeps_recurrent_state
from dflash_hf.target.trial import try_out
from dflash_hf.target.view import view_target
from tests.scripted import scripted, tiny_config
from tests.tiny import CONFIGS, greedy, prompt, tiny_target

PATTERNS = {
    "all": lambda place: False,
    "none": lambda place: True,
    "some": lambda place: place % 3 == 0,
    "two_of_five": lambda place: place % 5 < 2,
}


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def family(request):
    model = tiny_target(request.param)
    return attach(model), greedy(model, prompt(), 40)


@pytest.fixture(scope="module")
def llama():
    model = tiny_target()
    return attach(model), greedy(model, prompt(), 60)


def drafted(model, text, spoil=PATTERNS["some"], ids=None, **options):
    options = {"max_new_tokens": 40, "do_sample": False, **options}
    return model.generate(prompt() if ids is None else ids, assistant=scripted(model, text, spoil), **options)


def test_the_hosts_own_loop_with_our_engine_equals_plain_on_every_family(family):
    model, text = family
    drafter = scripted(model, text, PATTERNS["some"])
    call = {"max_new_tokens": 40, "do_sample": False, "assistant_model": drafter, "speculation_type": "dflash"}
    if keeps_recurrent_state(model):
        with pytest.raises(UnsupportedCallError, match="recurrent layers"):
            model.generate(prompt(), **call)
        return
    assert torch.equal(model.generate(prompt(), **call), text)
    assert drafter.calls < 30, "it must have drafted"


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_target_and_drafter_may_differ_in_dtype(dtypes):
    target = attach(tiny_target().to(dtypes[0]))
    text = greedy(target, prompt(), 20)
    drafter = scripted(target, text).to(dtypes[1])
    output = target.generate(prompt(), max_new_tokens=20, do_sample=False, assistant=drafter)
    assert drafter.calls < 6, "nearly all of it was accepted"
    if dtypes[0] == torch.float32:
        assert torch.equal(output, text)
    else:
        assert judge(target, prompt(), output[0, prompt().shape[1] :].tolist()).ok


def test_generate_accepts_what_the_script_allows(family):
    model, text = family
    drafted(model, text, PATTERNS["all"])
    accepted = [record.accepted for record in last_trace().rounds]
    assert accepted == [7, 7, 7, 7, 6], "39 tokens after the first: four full blocks of 7 + 1, then 6 + 1"
    metrics = last_trace().metrics()
    assert (metrics["tau"], metrics["tau_uncut"]) == (39 / 5, 8.0), "the last round had no room for a whole block"
    drafted(model, text, PATTERNS["none"])
    assert {record.accepted for record in last_trace().rounds} == {0}


def test_generate_never_verifies_wider_than_the_budget(llama):
    model, text = llama
    try_out(view_target(model), tiny_config(model))
    widths = []
    handle = model.model.register_forward_pre_hook(
        lambda _m, _a, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        drafted(model, text, PATTERNS["all"], max_new_tokens=4)
    finally:
        handle.remove()
    assert widths == [7, 3], "the prompt, then the anchor and the two drafts that still fit"


@pytest.mark.parametrize(
    "options", [{"prefill_chunk_size": 3}, {"max_length": 30}, {"min_new_tokens": 10, "eos_token_id": 5}]
)
def test_generate_with_other_lengths_and_chunks(llama, options):
    model, text = llama
    expected = type(model).generate(model, prompt(), do_sample=False, **{"max_new_tokens": 25, **options})
    output = model.generate(
        prompt(),
        do_sample=False,
        assistant=scripted(model, text, PATTERNS["some"]),
        **{"max_new_tokens": 25, **options},
    )
    assert torch.equal(output, expected)


def test_generate_reaches_the_last_row_of_a_position_table_and_no_further():
    model = attach(tiny_target("gpt2"))
    text = greedy(model, prompt(), 128 - 7)
    assert torch.equal(drafted(model, text, PATTERNS["all"], max_new_tokens=128 - 7), text)
    assert last_trace().metrics()["num_accepted_draft_tokens"] > 100


@pytest.mark.parametrize("cap", [0, 1, 3, 7, 50])
def test_options_cap_the_draft(llama, cap):
    model, text = llama
    output = drafted(model, text, PATTERNS["all"], dflash=DFlashOptions(max_draft_tokens=cap))
    assert torch.equal(output, text[:, : prompt().shape[1] + 40])
    assert max(len(record.drafted) for record in last_trace().rounds) == min(cap, 7)


def test_num_assistant_tokens_caps_the_draft_and_a_block_may_pass_the_hosts_default(llama):
    model, text = llama
    drafted(model, text, PATTERNS["all"], num_assistant_tokens=2)
    assert max(len(record.drafted) for record in last_trace().rounds) == 2
    wide = scripted(model, text, PATTERNS["all"], block_size=30)
    model.generate(prompt(), max_new_tokens=40, do_sample=False, assistant=wide)
    assert len(last_trace().rounds[0].drafted) == 29
