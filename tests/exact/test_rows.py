"""Several rows: each as in plain decoding of the same padded batch, though they are decoded one after another."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import LogitsProcessor, MaxTimeCriteria

from dflash_hf.errors import UnsupportedCallError
from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from dflash_hf.target.trial import try_out
from dflash_hf.target.view import view_target
from tests.exact.same import PATTERNS, assert_equal_caches, assert_equal_outputs, assert_same, drafter_for
from tests.exact.test_positions import CHANGING
from tests.scripted import scripted
from tests.tiny import CONFIGS, build_target, letters, prompt, tiny_target

NEW = 24
LENGTHS = (7, 3, 5)
EVERYTHING = ("return_dict_in_generate", "output_scores", "output_logits", "output_hidden_states", "output_attentions")


def batch(lengths=LENGTHS):
    """Prompts of these lengths, padded on the left: ids and mask [B, S]."""
    width = max(lengths)
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, width - length :] = prompt(length, seed=row)
        mask[row, width - length :] = 1
    return ids, mask


class Rows:
    """A model, a padded batch, and drafters that know each row's plain text."""

    def __init__(self, kind="llama", lengths=LENGTHS, eager=False):
        self.model = attach(tiny_target(kind))
        if eager:
            self.model.set_attn_implementation("eager")
        self.ids, self.mask = batch(lengths)
        self.lengths = lengths

    def run(self, drafter=None, **options):
        options = {"attention_mask": self.mask, "max_new_tokens": NEW, "do_sample": False, **options}
        return self.model.generate(self.ids, assistant=drafter, **options)

    def scripts(self, sequences):
        """Each row without its padding on the left."""
        width = self.ids.shape[1]
        return [row[width - length :] for row, length in zip(sequences, self.lengths, strict=True)]

    def assert_same(self, kind="spoiled", **options):
        plain = self.run(**options)
        sequences = plain if isinstance(plain, torch.Tensor) else plain.sequences
        drafter = scripted(self.model, self.scripts(sequences), PATTERNS[kind])
        drafted = self.run(drafter, **options)
        assert_equal_outputs(drafted, plain)
        return drafted, plain


def ends_of(plain, width, places):
    """Ids that end the rows of a plain text at different places."""
    return sorted({int(plain[row, width + place]) for row, place in enumerate(places)})


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_every_family_with_rows_that_end_at_different_places(kind):
    rows = Rows(kind)
    ends = ends_of(rows.run(), 7, (3, 11, 18))
    drafted, _ = rows.assert_same(eos_token_id=ends, pad_token_id=0, **dict.fromkeys(EVERYTHING, True))
    assert len(drafted.trace.rows) == 3


@pytest.mark.parametrize("pattern", ["all", "none", "spoiled"])
@pytest.mark.parametrize("ends", [None, (0, 5, 9), (2, 2, 2)], ids=["length", "apart", "early"])
@pytest.mark.parametrize("seen", [False, True], ids=["ids", "outputs"])
def test_every_drafter_and_end(pattern, ends, seen):
    rows = Rows("mistral", eager=True)
    options = dict.fromkeys(EVERYTHING, True) if seen else {}
    if ends is not None:
        options |= {"eos_token_id": ends_of(rows.run(), 7, ends), "pad_token_id": 0}
    rows.assert_same(pattern, **options)


PROCESSED = {
    "repetition_penalty": {"repetition_penalty": 1.4},
    "ngrams": {"no_repeat_ngram_size": 2},
    "encoder_repetition": {"encoder_repetition_penalty": 1.5},
    "encoder_ngrams": {"encoder_no_repeat_ngram_size": 2},
    "suppressed": {"suppress_tokens": [4, 50], "begin_suppress_tokens": [7]},
    "bad_words": {"bad_words_ids": [[3], [5, 6]]},
    "bias": {"sequence_bias": {(9,): 4.0, (9, 10): -3.0}},
    "prefix_by_row": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(2 + 20 * row, 22 + 20 * row))},
    "one_outcome": {"do_sample": True, "top_k": 1},
    "chunks": {"prefill_chunk_size": 3},
}


@pytest.mark.parametrize("name", sorted(PROCESSED))
@pytest.mark.parametrize("ended", [False, True])
def test_processors_see_their_own_row(name, ended):
    rows, options = Rows(), dict(PROCESSED[name])
    if ended:
        ends = ends_of(rows.run(**options), 7, (2, 9, 14))
        options |= {"eos_token_id": ends, "pad_token_id": 0, "min_new_tokens": 2}
    rows.assert_same(return_dict_in_generate=True, output_scores=True, **options)


def test_stop_strings_without_an_end_of_text_id_let_finished_rows_decode_on():
    rows, tokenizer = Rows(lengths=(5, 5)), letters()
    plain = rows.run()
    stop = [tokenizer.decode(plain[0, 5 + 4 : 5 + 6])]
    drafted, plain = rows.assert_same(stop_strings=stop, tokenizer=tokenizer)
    assert drafted.shape == plain.shape


@pytest.mark.parametrize("kind", ["llama", "mistral", "lfm2"])
def test_a_users_cache_of_several_rows_over_turns(kind):
    rows = Rows(kind)
    model, key = rows.model, cache_key(rows.model)
    ours, theirs = DynamicCache(config=model.config), DynamicCache(config=model.config)
    ends = ends_of(rows.run(), 7, (4, 9, 12))
    options = {"eos_token_id": ends, "pad_token_id": 0}
    plain = rows.run(**options, **{key: theirs})
    drafted = rows.run(scripted(model, rows.scripts(plain), PATTERNS["spoiled"]), **options, **{key: ours})
    assert torch.equal(drafted, plain)
    assert_equal_caches(ours, theirs)
    more = torch.cat([plain, torch.stack([prompt(4, seed=30 + row)[0] for row in range(3)])], dim=1)
    rows.mask = torch.cat([rows.mask, torch.ones(3, more.shape[1] - 7, dtype=torch.long)], dim=1)
    rows.ids = more
    plain = rows.run(**{key: theirs})
    drafted = rows.run(drafter_for(model, plain, "random"), **{key: ours})
    assert torch.equal(drafted, plain)
    assert_equal_caches(ours, theirs)


def test_num_return_sequences_repeats_the_prompt_and_draws_apart():
    model = attach(tiny_target())
    drafter = drafter_for(model, prompt(), "random")
    assert_same(
        model, prompt(), lambda: {"max_new_tokens": 9, "do_sample": True, "top_k": 1, "num_return_sequences": 3}
    )
    torch.manual_seed(0)
    texts = model.generate(prompt(), max_new_tokens=20, do_sample=True, num_return_sequences=4, assistant=drafter)
    assert texts.shape == (4, 27)
    assert len({tuple(text.tolist()) for text in texts}) > 1
    torch.manual_seed(0)
    again = model.generate(prompt(), max_new_tokens=20, do_sample=True, num_return_sequences=4, assistant=drafter)
    assert torch.equal(texts, again)


def test_inputs_embeds_of_several_rows():
    rows = Rows()
    embeds = rows.model.get_input_embeddings()(rows.ids).detach()
    options = {"inputs_embeds": embeds, "attention_mask": rows.mask, "max_new_tokens": NEW, "do_sample": False}
    plain = rows.model.generate(**options)
    assert torch.equal(rows.model.generate(**options, assistant=drafter_for(rows.model, plain, "random")), plain)


def test_the_trace_has_each_row():
    rows = Rows()
    drafted, plain = rows.assert_same("all", return_dict_in_generate=True)
    trace = drafted.trace
    assert trace is last_trace()
    assert [row.tokens for row in trace.rows] == plain.sequences[:, 7:].tolist()
    assert {record.row for row in trace.rows for record in row.rounds} == {0, 1, 2}
    assert trace.metrics()["num_accepted_draft_tokens"] > NEW
    assert type(trace).from_dict(trace.to_dict()) == trace


class _Counting(LogitsProcessor):
    """Bans what it allowed before: its own state decides."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        scores = scores.clone()
        scores[:, self.calls % scores.shape[1]] = 100.0
        return scores


REFUSED = {
    "user processor": lambda: {"logits_processor": LogitsProcessorList([_Counting()])},
    "guidance": lambda: {"guidance_scale": 1.5},
    "criterion with a clock": lambda: {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(60)])},
    "max_time": lambda: {"max_time": 60.0},
    "streamer": lambda: {"streamer": _Quiet()},
}


class _Quiet:
    def put(self, value):
        pass

    def end(self):
        pass


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_told_apart_by_row_is_refused_by_name_before_work(name):
    rows, forwards = Rows(), []
    drafter = drafter_for(rows.model, rows.ids, "random")
    try_out(view_target(rows.model), drafter.config)
    handle = rows.model.register_forward_pre_hook(lambda *_: forwards.append(1))
    with pytest.raises(UnsupportedCallError, match="row"):
        rows.run(drafter, **REFUSED[name]())
    assert not forwards
    handle.remove()
    attach(rows.model, drafter)
    with pytest.warns(UserWarning, match="without the attached drafter"):
        drafted = rows.run(**REFUSED[name]())
    assert torch.equal(drafted, type(rows.model).generate(
        rows.model, rows.ids, attention_mask=rows.mask, max_new_tokens=NEW, do_sample=False, **REFUSED[name]()
    ))  # fmt: skip


def test_an_interrupted_batch_leaves_the_users_cache_as_it_was():
    rows = Rows()
    model, key = rows.model, cache_key(rows.model)
    cache = DynamicCache(config=model.config)
    plain = rows.run(**{key: cache})
    length = cache.get_seq_length()
    drafter = scripted(model, rows.scripts(plain))
    attach(model, drafter)

    def interrupt(record):
        if record.row == 1:
            raise KeyboardInterrupt

    rows.ids = torch.cat([plain, torch.full((3, 2), 9)], dim=1)
    rows.mask = torch.cat([rows.mask, torch.ones(3, NEW + 2, dtype=torch.long)], dim=1)
    with pytest.raises(KeyboardInterrupt):
        rows.run(drafter, dflash={"on_round": interrupt}, **{key: cache})
    assert cache.get_seq_length() == length
    twin = copy.deepcopy(cache)
    expected = type(model).generate(
        model, rows.ids, attention_mask=rows.mask, max_new_tokens=NEW, do_sample=False, **{key: twin}
    )
    assert torch.equal(rows.run(drafter, **{key: cache}), expected)
    assert_equal_caches(cache, twin)


def test_rows_that_ended_early_are_read_on_in_parts():
    """Far more padding than one forward reads, with scores and caches all the way."""
    rows = Rows(lengths=(5, 5))
    plain = rows.run(max_new_tokens=150)
    ends = next(token for token in plain[0, 6:].tolist() if token not in plain[1].tolist())
    drafted, _ = rows.assert_same(
        "all", eos_token_id=ends, pad_token_id=0, max_new_tokens=150, **dict.fromkeys(EVERYTHING, True)
    )
    assert len(drafted.scores) == 150 and int((drafted.sequences[0] == 0).sum()) > 64


@pytest.mark.parametrize("name", ["position_ids", "token_type_ids"])
def test_an_argument_with_one_row_for_all_rows(name):
    rows = Rows("gpt2" if name == "token_type_ids" else "llama", lengths=(7, 7, 7))
    rows.assert_same(**{name: torch.arange(5, 12)[None]}, return_dict_in_generate=True, output_scores=True)


@pytest.mark.parametrize("kind", sorted(CHANGING))
def test_rows_whose_frequencies_change_with_the_longest_are_refused(kind):
    """The host picks them by the longest row of a batch: rows apart are read otherwise."""
    model = attach(build_target(CHANGING[kind]))
    ids, mask = batch()
    drafter = drafter_for(model, ids, "random")
    with pytest.raises(UnsupportedCallError, match="rotary frequencies change"):
        model.generate(ids, attention_mask=mask, max_new_tokens=200, assistant=drafter)
    short = {"attention_mask": mask, "max_new_tokens": 3, "do_sample": False}
    assert torch.equal(model.generate(ids, assistant=drafter, **short), model.generate(ids, **short))


@pytest.mark.parametrize(("cached", "given"), [(3, 2), (1, 3)])
def test_a_cache_of_another_number_of_rows_is_refused_and_left_alone(cached, given):
    model = attach(tiny_target())
    cache, call = DynamicCache(config=model.config), {"max_new_tokens": 4, "do_sample": False}
    ids = prompt().expand(cached, -1)
    model.generate(ids, **call, **{cache_key(model): cache})
    more = torch.cat([model.generate(prompt(), **call), prompt(3)], dim=1).expand(given, -1)
    before = copy.deepcopy(cache)
    with pytest.raises(UnsupportedCallError, match=f"a cache that holds {cached}"):
        model.generate(more, assistant=drafter_for(model, ids, "random"), **call, **{cache_key(model): cache})
    assert_equal_caches(cache, before)


def test_rows_that_only_a_mask_tells_of_are_refused_with_a_streamer_before_it_is_shown_anything():
    model, stream = attach(tiny_target()), _Quiet()
    stream.put = lambda value: pytest.fail("shown")
    call = {"attention_mask": torch.ones(3, 1, dtype=torch.long), "max_new_tokens": 4, "do_sample": False}
    with pytest.raises(UnsupportedCallError, match="streamer with several rows"):
        model.generate(assistant=drafter_for(model, prompt(), "random"), streamer=stream, **call)
    drafted = model.generate(assistant=drafter_for(model, prompt(), "random"), **call)
    assert torch.equal(drafted, model.generate(**call))
