"""Any mix of options gives what plain decoding gives: drawn at random, many at once, shrunk to the least that fails."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from transformers import LogitsProcessor, LogitsProcessorList, StaticCache, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import StaticLayer

from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key, chunks_go_on
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
FULL = ("llama", "qwen3", "qwen3_moe", "gpt2", "deepseek_v3")  # attention without windows
TOKENIZER = letters()


@cache
def target(kind, eager):
    model = tiny_target(kind)
    if eager:
        model.set_attn_implementation("eager")
    return model


def written(mix):
    """generate's arguments, made anew for each run: some keep state."""
    options = {"do_sample": False, **mix}
    if proposals := options.pop("one_outcome", None):
        options |= {"do_sample": True, "top_k": 1}  # a draw with one outcome
    if stop := options.pop("stop", None):
        options |= {"stop_strings": [TOKENIZER.decode(stop)], "tokenizer": TOKENIZER}
    if options.pop("prefixes", False):
        options["prefix_allowed_tokens_fn"] = lambda row, ids: list(range(2 + row + len(ids) % 3, 60 + row))
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
    "drafter": st.fixed_dictionaries(
        {
            "block_size": st.sampled_from([2, 5, 8, 16]),
            "target_layer_ids": st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
            "layer_windows": st.sampled_from([[None, None], [5, None], [3, 9]]),
        }
    ),
    "cap": st.none() | st.integers(0, 9),
    "wrong": st.sets(st.integers(0, 60)),
    "prompt_as": st.sampled_from(["ids", "ids", "embeds", "cached", "static"]),
    "sequences": st.sampled_from([1, 1, 2]),
    "again": st.booleans(),
}


class Mix:
    """One mix of options, run plainly and drafted, over one turn or two."""

    def __init__(self, *, kind, eager, mix, alone, lengths, padding, sequences, prompt_as, again, **rest):
        self.model, self.mix = target(kind, eager), dict(mix)
        self.new, self.cap, self.drafting, self.wrong = (rest[name] for name in ("new", "cap", "drafter", "wrong"))
        self.ids, self.mask = padded(lengths)
        self.prompt_as, self.again = prompt_as, again
        self.more = {"num_return_sequences": sequences} if sequences > 1 and "one_outcome" in mix else {}
        if len(lengths) == 1 and not self.more:
            self.mix |= alone
            if "guidance_scale" not in alone:
                self.ids, self.mask = (torch.nn.functional.pad(each, (padding, 0)) for each in (self.ids, self.mask))
        elif prompt_as == "static":
            self.prompt_as = "ids"
        if not chunks_go_on() and (again or prompt_as == "cached"):
            self.mix.pop("prefill_chunk_size", None)  # over a filled cache it is refused on these releases
        if "guidance_scale" in self.mix or self.more:
            self.prompt_as, self.again = "ids", False
        if self.prompt_as == "static" and (kind not in FULL or not hasattr(StaticLayer, "crop")):
            self.prompt_as = "ids"
        self.starts = [self.ids.shape[1] - length for length in lengths for _ in range(sequences if self.more else 1)]

    def inputs(self):
        key = cache_key(self.model)
        if self.prompt_as == "embeds":
            return {"inputs_embeds": self.model.get_input_embeddings()(self.ids).detach()}
        if self.prompt_as == "cached":
            past = _past(self.model, self.ids[:, :-1], self.mask[:, :-1])
            return {"inputs": self.ids, **({key: past} if past is not None else {})}
        if self.prompt_as == "static":
            return {"inputs": self.ids, key: StaticCache(self.model.config, max_cache_len=2 * self.new + 20)}
        return {"inputs": self.ids}

    def run(self, inputs, mask, drafted):
        options, drafting = written(self.mix)
        if drafted:
            options["dflash"] = {"max_draft_tokens": self.cap, **drafting}
        returned = {"return_dict_in_generate": True, "max_new_tokens": self.new, "pad_token_id": 0}
        generate = self.model.generate if drafted else partial(type(self.model).generate, self.model)
        return generate(**inputs, attention_mask=mask, **returned, **options, **self.more)

    def _plain(self, inputs, mask):
        try:
            return self.run(inputs, mask, False)
        except (RuntimeError, ValueError, IndexError):  # plain generate itself cannot
            reject()

    def check(self):
        plain = self._plain(self.inputs(), self.mask)
        whole = plain.sequences
        if self.prompt_as == "embeds":
            whole = torch.cat([self.ids, whole], dim=1)
        drafter = scripted(self.model, self._scripts(whole), lambda place: place in self.wrong, **self.drafting)
        attach(self.model, drafter)
        drafted = self.run(self.inputs(), self.mask, True)
        assert_equal_outputs(drafted, plain)
        for row, trace in enumerate(last_trace().rows or [last_trace()]):
            assert trace.loop == "sequential"
            assert trace.tokens == whole[row, self.ids.shape[1] :].tolist()[: len(trace.tokens)]
        if self.again and self.prompt_as != "embeds":
            self._turn(whole, drafter, drafted, plain)

    def _turn(self, whole, drafter, drafted, plain):
        """Another turn over the caches of the first: the drafter knows what it was shown, at most once."""
        key = cache_key(self.model)
        ids = torch.cat([whole, prompt(3, seed=7).expand(len(whole), -1)], dim=1)
        mask = torch.nn.functional.pad(self.mask, (0, ids.shape[1] - self.mask.shape[1]), value=1)
        plain = self._plain({"inputs": ids, key: plain[key]}, mask)
        for script, text in zip(drafter.scripts, self._scripts(plain.sequences), strict=True):
            script[:] = text.tolist()
        assert_equal_outputs(self.run({"inputs": ids, key: drafted[key]}, mask, True), plain)

    def _scripts(self, whole):
        return [row[start:] for row, start in zip(whole, self.starts, strict=True)]


@torch.no_grad()
def _past(model, ids, mask):
    """A cache of all but the last token, as plain decoding fills it, or None where a row is nothing but padding."""
    if not ids.shape[1] or not mask.any(dim=1).all():
        return None
    asked = {"max_new_tokens": 1, "do_sample": False, "return_dict_in_generate": True}
    return type(model).generate(model, ids, attention_mask=mask, **asked)[cache_key(model)]


QUIET = pytest.mark.filterwarnings("ignore::UserWarning:transformers")


@QUIET
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(**{**MIX, "kind": st.sampled_from(["llama", "mistral", "lfm2"])})
def test_a_mix_of_options_gives_what_plain_gives(**drawn):
    Mix(**drawn).check()


@pytest.mark.slow
@QUIET
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(**MIX)
def test_any_mix_of_options_on_any_family_gives_what_plain_gives(**drawn):
    Mix(**drawn).check()
