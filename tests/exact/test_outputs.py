"""All that `return_dict_in_generate` can hold, entry for entry as plain decoding gives it, and our trace beside it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from transformers import GenerationConfig

from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from tests.exact.same import PATTERNS, assert_same, drafter_for
from tests.tiny import CONFIGS, prompt, tiny_target

EVERYTHING = ("output_scores", "output_logits", "output_hidden_states", "output_attentions")
NEW = 30


def asking(*outputs, **more):
    return lambda: {
        "max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True,
        **dict.fromkeys(outputs, True), **more,
    }  # fmt: skip


def of(kind, attention):
    model = tiny_target(kind)
    if attention not in ("eager", model.config._attn_implementation):
        pytest.skip(f"{kind} has no {attention} in transformers; its eager row runs beside this one")
    model.set_attn_implementation(attention)
    return attach(model)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_every_output_equals_plain_on_every_family(kind, attention):
    drafted, plain = assert_same(of(kind, attention), prompt(), asking(*EVERYTHING))
    assert len(drafted.hidden_states) == len(drafted.attentions) == len(plain.scores) == NEW
    if attention == "eager":
        assert drafted.attentions[-1][-1].shape[-2] == 1, "attentions are there, one row a token"


@pytest.mark.parametrize("kind", sorted(PATTERNS))
@pytest.mark.parametrize("outputs", [(), *((each,) for each in EVERYTHING), EVERYTHING], ids="+".join)
def test_each_output_alone_and_together_for_every_drafter(outputs, kind):
    drafted, plain = assert_same(of("mistral", "eager"), prompt(), asking(*outputs), kind)
    assert len(drafted.to_tuple()) == len(plain.to_tuple())


@pytest.mark.parametrize(
    "more", [{"prefill_chunk_size": 3}, {"repetition_penalty": 1.3}, {"output_hidden_states": False}]
)
def test_outputs_go_with_other_options(more):
    assert_same(of("gemma3", "eager"), prompt(), asking(*EVERYTHING, **more))


def test_padding_is_in_the_outputs_as_plain_has_it():
    ids = torch.cat([torch.zeros(1, 4, dtype=torch.long), prompt()], dim=1)
    assert_same(of("mistral", "eager"), ids, asking(*EVERYTHING, attention_mask=(ids != 0).long()), padding=4)


def test_hidden_states_may_be_chosen_by_index():
    """5.18 to 5.22 count layers, 5.23 on hidden states; whatever plain gives, drafted gives."""
    for chosen in ([1, 3], [2]):
        assert_same(of("llama", "sdpa"), prompt(), asking(output_hidden_states=chosen))


@pytest.mark.parametrize("where", ["call_config", "model_config"])
def test_outputs_asked_for_in_a_config(where):
    model, options = of("llama", "eager"), asking(*EVERYTHING)()
    if where == "call_config":
        assert_same(model, prompt(), lambda: {"generation_config": GenerationConfig(**options)})
        return
    model.generation_config.update(**options)
    assert_same(model, prompt(), dict)


def test_the_output_carries_its_trace_and_is_else_the_hosts():
    model = of("llama", "sdpa")
    drafted, plain = assert_same(model, prompt(), asking("output_scores"))
    assert drafted.trace is last_trace()
    assert drafted.trace.tokens == drafted.sequences[0, 7:].tolist()
    assert isinstance(drafted, type(plain)) and "trace" not in drafted
    for twin in (copy.copy(drafted), pickle.loads(pickle.dumps(drafted))):
        assert twin.trace.tokens == drafted.trace.tokens
        assert list(twin) == list(drafted)
    assert drafted[cache_key(model)].get_seq_length() == 7 + NEW - 1


def test_returned_tensors_are_apart_from_each_other():
    """A user who writes into scores changes no logits."""
    model = of("llama", "sdpa")
    output = model.generate(
        prompt(), assistant=drafter_for(model, model.generate(prompt(), max_new_tokens=NEW, do_sample=False), "all"),
        **asking("output_scores", "output_logits")(),
    )  # fmt: skip
    before = [logits.clone() for logits in output.logits]
    for scores in output.scores:
        scores.fill_(7)
    assert all(torch.equal(*pair) for pair in zip(output.logits, before, strict=True))
