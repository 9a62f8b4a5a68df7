"""Any mix of options gives what plain decoding gives: drawn at random, many at once, shrunk to the least that fails."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from tests.exact.same import assert_equal_outputs
from tests.scripted import scripted
from tests.tiny import CONFIGS, letters, prompt, tiny_target


class _Counting(LogitsProcessor):
    """State of its own: every third token is pushed towards the number of calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        if self.calls % 3 == 0:
            scores[:, self.calls % scores.shape[1]] += 9.0
        return scores


class _EndsAfter(StoppingCriteria):
    def __init__(self, calls):
        self.left = calls

    def __call__(self, input_ids, scores, **_):
        self.left -= 1
        return torch.full((len(input_ids),), self.left <= 0)


OPTIONS = {
    "repetition_penalty": st.sampled_from([1.2, 1.8]),
    "encoder_repetition_penalty": st.just(1.4),
    "no_repeat_ngram_size": st.just(2),
    "suppress_tokens": st.just([4, 50]),
    "sequence_bias": st.just([[[9], 3.0], [[9, 10], -2.0]]),
    "eos_token_id": st.lists(st.integers(2, 95), min_size=1, max_size=6, unique=True),
    "min_new_tokens": st.integers(1, 12),
    "exponential_decay_length_penalty": st.just((3, 1.2)),
    "prefill_chunk_size": st.integers(1, 5),
    "one_outcome": st.sampled_from(["argmax", "sampled"]),
    "stop": st.lists(st.integers(2, 95), min_size=1, max_size=2),
    "prefixes": st.just(True),
    "output_scores": st.just(True),
    "output_logits": st.just(True),
    "output_hidden_states": st.just(True),
    "output_attentions": st.just(True),
}
ALONE = {  # what is refused with several rows
    "guidance_scale": st.just(1.4),
    "max_time": st.just(600.0),
    "counting": st.just(True),
    "ends_after": st.integers(1, 20),
}
TOKENIZER = letters()


@cache
def target(kind, eager):
    model = tiny_target(kind)
    if eager:
        model.set_attn_implementation("eager")
    return attach(model)


def written(mix):
    """generate's arguments, made anew for each run: some keep state."""
    options = {"do_sample": False, **mix}
    if proposals := options.pop("one_outcome", None):
        options |= {"do_sample": True, "top_k": 1}  # a draw with one outcome
    if stop := options.pop("stop", None):
        options |= {"stop_strings": [TOKENIZER.decode(stop)], "tokenizer": TOKENIZER}
    if options.pop("prefixes", False):
        options["prefix_allowed_tokens_fn"] = lambda row, ids: list(range(2 + row + len(ids) % 3, 60 + 9 * row))
    if options.pop("counting", False):
        options["logits_processor"] = LogitsProcessorList([_Counting()])
    if calls := options.pop("ends_after", None):
        options["stopping_criteria"] = StoppingCriteriaList([_EndsAfter(calls)])
    return options, {"proposals": proposals or "argmax"}


def padded(lengths):
    """Prompts of these lengths, padded on the left: ids and mask [B, S]."""
    width = max(lengths)
    rows = [torch.nn.functional.pad(prompt(length, seed=length + 9), (width - length, 0)) for length in lengths]
    masks = [[0] * (width - length) + [1] * length for length in lengths]
    return torch.cat(rows), torch.tensor(masks)


MIX = {
    "kind": st.sampled_from(sorted(CONFIGS)),
    "eager": st.booleans(),
    "mix": st.fixed_dictionaries({}, optional=OPTIONS),
    "alone": st.fixed_dictionaries({}, optional=ALONE),
    "lengths": st.lists(st.integers(1, 12), min_size=1, max_size=3),
    "padding": st.integers(0, 3),
    "new": st.integers(1, 30),
    "block": st.sampled_from([2, 5, 8, 16]),
    "taps": st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
    "cap": st.none() | st.integers(0, 9),
    "wrong": st.sets(st.integers(0, 60)),
    "cached": st.booleans(),
    "sequences": st.sampled_from([1, 1, 2]),
}


def check(kind, eager, mix, alone, lengths, padding, new, block, taps, cap, wrong, cached, sequences):
    model = target(kind, eager)
    ids, mask = padded(lengths)
    if len(lengths) == 1 and padding:
        ids, mask = (torch.nn.functional.pad(each, (padding, 0)) for each in (ids, mask))
    more = {"num_return_sequences": sequences} if sequences > 1 and "one_outcome" in mix else {}
    if len(lengths) > 1 or more:
        alone = {}
    if "guidance_scale" in alone:
        cached = False
        ids, mask = ids[:, -lengths[0] :], mask[:, -lengths[0] :]
    cached = cached and not more

    def run(drafter=None):
        options, drafting = written({**mix, **alone})
        past = {cache_key(model): _past(model, ids[:, :-1], mask[:, :-1])} if cached else {}
        past = {name: value for name, value in past.items() if value is not None}
        if drafter is not None:
            options |= {"assistant": drafter, "dflash": {"max_draft_tokens": cap, **drafting}}
        returned = {"return_dict_in_generate": True, "max_new_tokens": new, "pad_token_id": 0}
        return model.generate(ids, attention_mask=mask, **returned, **options, **past, **more)

    try:
        plain = run()
    except (RuntimeError, ValueError):  # plain generate itself cannot
        reject()
    starts = [ids.shape[1] - length for length in lengths for _ in range(more.get("num_return_sequences", 1))]
    scripts = [row[start:] for row, start in zip(plain.sequences, starts, strict=True)]
    drafter = scripted(model, scripts, lambda place: place in wrong, block_size=block, target_layer_ids=taps)
    drafted = run(drafter)
    assert_equal_outputs(drafted, plain)
    for row, trace in enumerate(last_trace().rows or [last_trace()]):
        written_tokens = plain.sequences[row, ids.shape[1] :].tolist()
        assert trace.tokens == written_tokens[: len(trace.tokens)]


@torch.no_grad()
def _past(model, ids, mask):
    """A cache of all but the last token, as plain decoding fills it, or None where a row is nothing but padding."""
    if not ids.shape[1] or not mask.any(dim=1).all():
        return None
    asked = {"max_new_tokens": 1, "do_sample": False, "return_dict_in_generate": True}
    return type(model).generate(model, ids, attention_mask=mask, **asked)[cache_key(model)]


QUIET = pytest.mark.filterwarnings("ignore:Unfeasible length constraints")


@QUIET
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(**{**MIX, "kind": st.sampled_from(["llama", "mistral", "lfm2"])})
def test_a_mix_of_options_gives_what_plain_gives(**drawn):
    check(**drawn)


@pytest.mark.slow
@QUIET
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(**MIX)
def test_any_mix_of_options_on_any_family_gives_what_plain_gives(**drawn):
    check(**drawn)
