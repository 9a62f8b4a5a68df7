"""What the drafter knows of a conversation: kept between turns of an attached pair, for each cache, as far as true."""

from __future__ import annotations

import copy
import gc
import pickle
from contextlib import nullcontext

import pytest
import torch
from transformers import DynamicCache

import dflash_hf
from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from tests.exact.same import PATTERNS
from tests.scripted import scripted
from tests.tiny import prompt, tiny_target

NEW = 12


class Conversation:
    """Turns of one conversation over one cache; records at which positions the drafter was shown tokens."""

    def __init__(self, kind="llama", door="default", pattern="spoiled", **changes):
        self.model = tiny_target(kind)
        ids = prompt(60, seed=4)
        self.drafter = scripted(self.model, ids, PATTERNS[pattern], **changes)
        self.shown: list[int] = []
        inject = self.drafter.inject

        def seen(taps, positions, context):
            self.shown += positions[0].tolist()
            inject(taps, positions, context)

        self.drafter.inject = seen
        self.pair = dflash_hf.DFlashModel(self.model, self.drafter)
        if door == "default":
            attach(self.model, self.drafter)
        self.door = door
        self.cache = DynamicCache(config=self.model.config)

    def turn(self, ids, new=NEW, cache=None, **options):
        """Ids of the whole conversation; returns them with the answer, which plain decoding must give too."""
        cache = self.cache if cache is None else cache
        call = {"max_new_tokens": new, "do_sample": False, **options}
        plain = type(self.model).generate(self.model, ids, **call, **{cache_key(self.model): copy.deepcopy(cache)})
        self.drafter.scripts[0][:] = plain[0].tolist()  # in place: a context of an earlier turn reads it too
        call[cache_key(self.model)] = cache
        if self.door == "zero_patch":
            text = self.model.generate(ids, custom_generate=dflash_hf.generate, assistant=self.drafter, **call)
        else:
            text = (self.pair if self.door == "wrapper" else self.model).generate(ids, **call)
        assert torch.equal(text, plain)
        return text

    def known(self):
        """Positions the drafter was shown, each at most once; empties the record."""
        shown, self.shown = self.shown, []
        assert len(set(shown)) == len(shown), "a token was shown twice"
        return set(shown)


def more(text, count=5, seed=20):
    return torch.cat([text, prompt(count, seed=seed)], dim=1)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3", "lfm2", "deepseek_v3"])
@pytest.mark.parametrize("door", ["default", "wrapper"])
def test_every_token_of_three_turns_is_shown_once(kind, door):
    talk = Conversation(kind, door)
    text = prompt()
    for turn in range(3):
        text = talk.turn(more(text, seed=20 + turn))
        context = len(talk.known())
    cached = talk.cache.get_seq_length()
    assert cached == text.shape[1] - 1
    assert context < cached, "the last turn showed only what was new"
    memory = talk.pair._memory if door == "wrapper" else talk.model.__dict__["_dflash_attached"].memory
    assert memory.recall(talk.cache, talk.drafter, 1)[0].length == cached, "and all of it is known"


def test_two_conversations_on_one_pair_each_have_their_own():
    talk = Conversation()
    first, second = talk.cache, DynamicCache(config=talk.model.config)
    texts = [prompt(), prompt(9, seed=5)]
    for turn in range(3):
        for who, cache in enumerate((first, second)):
            texts[who] = talk.turn(more(texts[who], seed=20 + turn), cache=cache)
            start = 0 if turn == 0 else texts[who].shape[1] - NEW - 5 - 1
            assert talk.known() == set(range(start, texts[who].shape[1] - 1))


@pytest.mark.parametrize("modes", [(torch.inference_mode, nullcontext), (nullcontext, torch.inference_mode)])
def test_a_context_from_another_gradient_mode_goes_on(modes):
    """Tensors made in inference mode cannot be written to outside it."""
    talk = Conversation()
    text = prompt()
    for turn in range(3):
        with modes[turn % 2]():
            text = talk.turn(more(text, seed=20 + turn))
    assert len(talk.known()) == 3 * (NEW + 5) + 7 - 1


def test_only_the_new_ids_may_be_given():
    talk = Conversation()
    text = talk.turn(prompt())
    talk.known()
    new = prompt(5, seed=21)
    mask = torch.ones(1, text.shape[1] + 5, dtype=torch.long)
    call = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, cache_key(talk.model): talk.cache}
    answer = talk.model.generate(new, **call)
    assert answer.shape == (1, 9)
    assert min(talk.known()) >= text.shape[1] - 1


def test_a_returned_cache_is_remembered_like_a_given_one():
    talk = Conversation()
    output = talk.model.generate(prompt(), max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True)
    talk.known()
    text = talk.turn(more(output.sequences), cache=output[cache_key(talk.model)])
    assert talk.known() == set(range(7 + NEW - 1, text.shape[1] - 1))


def test_a_cropped_cache_forgets_what_was_cropped():
    """A user takes back a question: the drafter is shown what is new from there on."""
    talk = Conversation()
    text = talk.turn(more(talk.turn(prompt())))
    talk.known()
    talk.cache.crop(-9)
    kept = talk.cache.get_seq_length()
    text = talk.turn(more(text[:, : kept + 1], seed=33))
    assert talk.known() == set(range(kept, text.shape[1] - 1))


def test_a_cache_rewritten_by_others_is_known_up_to_the_first_change():
    talk = Conversation()
    text = talk.turn(prompt())
    talk.known()
    kept = 10
    talk.cache.crop(-(talk.cache.get_seq_length() - kept))
    other = torch.cat([text[:, :kept], prompt(14, seed=40)], dim=1)
    with torch.no_grad():  # somebody else reads other tokens into it, more than were there before
        talk.model(other[:, kept:], **{cache_key(talk.model): talk.cache})
    memory = talk.model.__dict__["_dflash_attached"].memory
    assert memory.recall(talk.cache, talk.drafter, 1)[0].length == kept


def test_tokens_read_by_others_leave_a_gap_and_acceptance_recovers():
    talk = Conversation(pattern="all")
    text = talk.turn(prompt())
    talk.known()
    text = more(text, 9)
    with torch.no_grad():
        talk.model(text[:, talk.cache.get_seq_length() : -2], **{cache_key(talk.model): talk.cache})
    text = talk.turn(text, new=24)
    assert min(talk.known()) == text.shape[1] - 24 - 2, "at their true positions"
    assert [record.accepted for record in last_trace().rounds][:-1] == [7, 7]


def test_a_reset_cache_starts_a_new_conversation():
    talk = Conversation()
    talk.turn(prompt())
    talk.known()
    talk.cache.reset()
    text = talk.turn(prompt(6, seed=50))
    assert talk.known() == set(range(text.shape[1] - 1))


def test_another_drafter_or_another_cache_knows_nothing():
    talk = Conversation()
    text = talk.turn(prompt())
    talk.known()
    twin = copy.deepcopy(talk.cache)
    talk.turn(more(text), cache=twin)
    assert min(talk.known()) == text.shape[1] - 1, "a copy is another cache: its past is unknown, and not made up"
    memory = talk.model.__dict__["_dflash_attached"].memory
    other = scripted(talk.model, text)
    assert memory.recall(talk.cache, other, 1)[0].length == 0


def test_memory_dies_with_its_cache_and_calls_without_a_users_cache_leave_none():
    talk = Conversation()
    memory = talk.model.__dict__["_dflash_attached"].memory
    talk.model.generate(prompt(), max_new_tokens=4, do_sample=False)
    assert len(memory) == 0
    talk.turn(prompt())
    assert len(memory) == 1
    talk.cache = DynamicCache(config=talk.model.config)
    gc.collect()
    assert len(memory) == 0


def test_the_zero_patch_door_keeps_nothing():
    talk = Conversation(door="zero_patch")
    text = talk.turn(prompt())
    talk.known()
    talk.turn(more(text))
    assert min(talk.known()) == text.shape[1] - 1


@pytest.mark.parametrize("window", [None, 5])
def test_context_of_earlier_turns_gives_the_drafts_that_one_long_prompt_gives(window):
    """The real network, not a script: its proposals in turn two are those it makes when it reads all at once."""
    model = attach(tiny_target())
    torch.manual_seed(2)
    drafter = dflash_hf.DFlashDrafter(
        scripted(model, prompt(), layer_windows=[window, None]).config
    ).eval()  # fmt: skip
    attach(model, drafter)
    cache = DynamicCache(config=model.config)
    call = {"max_new_tokens": NEW, "do_sample": False}
    text = more(model.generate(prompt(), **call, **{cache_key(model): cache}))
    model.generate(text, **call, **{cache_key(model): cache})
    over_turns = [record.drafted for record in last_trace().rounds]
    model.generate(text, **call)
    assert [record.drafted for record in last_trace().rounds] == over_turns


@pytest.mark.parametrize("stage", ["first", "later"])
def test_an_interrupted_turn_keeps_what_both_sides_know(stage):
    talk = Conversation(pattern="all")
    text = more(talk.turn(prompt()))
    talk.known()
    attention, calls = talk.drafter.layers[1].self_attn, []  # layer 0 has its rows already
    original = attention.inject

    def interrupt(*rest):
        calls.append(1)
        if len(calls) == (1 if stage == "first" else 3):
            raise KeyboardInterrupt
        return original(*rest)

    attention.inject = interrupt
    with pytest.raises(KeyboardInterrupt):
        talk.turn(text, new=20)
    del attention.inject
    memory = talk.model.__dict__["_dflash_attached"].memory
    context = memory.recall(talk.cache, talk.drafter, 1)[0]
    assert context.length <= talk.cache.get_seq_length()
    assert context.length >= 7 + NEW - 1
    memory.keep(talk.cache, talk.drafter, [context])
    talk.turn(text, new=20)


def test_several_rows_are_remembered_by_row():
    model = attach(tiny_target())
    ids = torch.cat([prompt(6, seed=1), prompt(6, seed=2)])
    cache, call = DynamicCache(config=model.config), {"max_new_tokens": NEW, "do_sample": False}
    plain = model.generate(ids, **call)
    drafter = scripted(model, list(plain), PATTERNS["spoiled"])
    attach(model, drafter)
    text = model.generate(ids, **call, **{cache_key(model): cache})
    assert torch.equal(text, plain)
    memory = model.__dict__["_dflash_attached"].memory
    contexts = memory.recall(cache, drafter, 2)
    assert [context.length for context in contexts] == [6 + NEW - 1] * 2


def test_a_drafter_of_another_dtype_starts_anew():
    """Its contexts hold keys of the old one."""
    talk = Conversation()
    text = talk.turn(prompt())
    talk.known()
    talk.drafter.to(torch.bfloat16)
    talk.drafter.head_rows = talk.drafter.head_rows.to(torch.bfloat16)
    talk.turn(more(text))
    assert min(talk.known()) == text.shape[1] - 1


def test_a_batch_interrupted_in_its_second_row_starts_anew():
    """Row 0 had gone on and row 2 had not begun: nothing of it is in the cache, and a windowed layer lost old rows."""
    model = attach(tiny_target())
    ids = torch.cat([prompt(6, seed=seed) for seed in range(3)])
    cache, call = DynamicCache(config=model.config), {"max_new_tokens": NEW, "do_sample": False}
    drafter = scripted(model, list(model.generate(ids, **call)), PATTERNS["spoiled"], layer_windows=[5, None])
    attach(model, drafter)
    text = model.generate(ids, **call, **{cache_key(model): cache})
    text = torch.cat([text, prompt(3, seed=9).expand(3, -1)], dim=1)

    def interrupt(record):
        if record.row == 1:
            raise KeyboardInterrupt

    expected = type(model).generate(model, text, **call, **{cache_key(model): copy.deepcopy(cache)})
    with pytest.raises(KeyboardInterrupt):
        model.generate(text, **call, **{cache_key(model): cache}, dflash={"on_round": interrupt})
    assert len(model.__dict__["_dflash_attached"].memory) == 0
    assert torch.equal(model.generate(text, **call, **{cache_key(model): cache}), expected)


def test_copies_and_pickles_of_a_pair_take_no_conversation_along():
    talk = Conversation(door="wrapper")
    talk.turn(prompt())
    assert len(talk.pair._memory) == 1
    for twin in (copy.deepcopy(talk.pair._memory), pickle.loads(pickle.dumps(talk.pair._memory))):
        assert len(twin) == 0
