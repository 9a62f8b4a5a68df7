"""A conversation over one cache: every way to continue it gives plain's text and leaves plain's cache."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

import dflash_hf
from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from dflash_hf.target.host import cache_key
from tests.exact.same import PATTERNS, assert_equal_caches
from tests.exact.test_hybrids import target as hybrid
from tests.hybrids import HYBRIDS
from tests.scripted import scripted
from tests.tiny import prompt, tiny_target

SOON = ("llama", "mistral", "gemma3", "lfm2", "deepseek_v3", "falcon_h1", "qwen3_5")
# Nobody counts the tokens of Mamba 2's cache: what of a conversation it holds cannot be asked (test_hybrids has it).
LATER = sorted(HYBRIDS.keys() - {*SOON, "mamba2"})
TARGETS = [*SOON, *(pytest.param(kind, marks=pytest.mark.slow) for kind in LATER)]
IDS, NEW, TURNS = prompt(), 8, 3
SAID = [torch.tensor([[11, 12, 13]]), torch.tensor([[21]])]  # what the user says after each answer
OPTIONS = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def targets():
    made = {}

    def target(kind):
        if kind not in made:
            made[kind] = hybrid(kind) if kind in HYBRIDS else tiny_target(kind)
        return made[kind]

    return target


def plainly(model, ids, **call):
    return type(model).generate(model, ids, **call)


def drafting(script, kind, padding=0):
    """The same call with a drafter that knows ``script`` [1, S + n]."""
    return lambda model, ids, **call: generate(
        model, ids, assistant=scripted(model, script[:, padding:], PATTERNS[kind]), **call
    )


def converse(model, way, runs, cache, ids=IDS, mask=None):
    """Three turns, one function of ``runs`` a turn: the whole conversation after each, and the cache."""
    key, whole, texts = cache_key(model), ids, []
    for turn, run in enumerate(runs):
        mask_now = mask if mask is None else torch.cat([mask, torch.ones_like(whole[:, mask.shape[1] :])], dim=1)
        fed = whole
        if way == "new ids" and turn:
            fed = whole[:, int(cache.get_seq_length()) :]
            mask_now = torch.ones_like(whole) if mask is None else mask_now
        more = {} if mask_now is None else {"attention_mask": mask_now}
        output = run(model, fed, **OPTIONS, **more, **{key: cache})
        assert output[key] is cache
        whole = torch.cat([whole[:, : whole.shape[1] - fed.shape[1]], output.sequences], dim=1)
        texts.append(whole)
        if turn < len(SAID):
            whole = torch.cat([whole, SAID[turn]], dim=1)
    return texts


def assert_left_as_plain(model, mine, theirs):
    """Equal layer by layer, in the mode it came in, holding no more than plain's."""
    assert_equal_caches(mine, theirs)
    assert not any(getattr(layer, "record_past", False) for layer in mine.layers)


def read(model, ids, mask=None):
    """A cache of ``ids``, made by somebody else."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, attention_mask=mask, use_cache=True, **{cache_key(model): cache})
    return cache


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("way", ["full ids", "new ids"])
@pytest.mark.parametrize("target", TARGETS)
def test_three_turns_over_one_cache(targets, target, way, padding):
    model = targets(target)
    ids, mask = IDS, None
    if padding:
        ids = torch.cat([torch.zeros_like(IDS[:, :padding]), IDS], dim=1)
        mask = (torch.arange(ids.shape[1]) >= padding).long()[None]
    theirs = DynamicCache(config=model.config)
    plain = converse(model, way, [plainly] * TURNS, theirs, ids, mask)
    for kind in ("spoiled",) if padding else ("all", "spoiled"):
        mine = DynamicCache(config=model.config)
        runs = [drafting(text, kind, padding) for text in plain]
        drafted = converse(model, way, runs, mine, ids, mask)
        assert all(torch.equal(a, b) for a, b in zip(drafted, plain, strict=True))
        assert_left_as_plain(model, mine, theirs)


@pytest.mark.parametrize(("order", "way"), [("plain first", "full ids"), ("drafted first", "new ids")])
@pytest.mark.parametrize("target", TARGETS)
def test_plain_and_drafted_turns_continue_each_other(targets, target, order, way):
    model, theirs, mine = targets(target), *(DynamicCache(config=targets(target).config) for _ in range(2))
    plain = converse(model, way, [plainly] * TURNS, theirs)
    turns = [plainly, drafting(plain[1], "spoiled"), plainly]
    if order == "drafted first":
        turns = [drafting(plain[0], "spoiled"), plainly, drafting(plain[2], "all")]
    drafted = converse(model, way, turns, mine)
    assert all(torch.equal(a, b) for a, b in zip(drafted, plain, strict=True))
    assert_left_as_plain(model, mine, theirs)


@pytest.mark.parametrize("held", [1, 4, 11])
@pytest.mark.parametrize("target", TARGETS)
def test_a_cache_made_by_someone_else_holds_a_prefix(targets, target, held):
    """The drafter has not seen what the cache holds: it is given the rest, at its true positions, and accepts."""
    model, ids = targets(target), prompt(12)
    theirs = read(model, ids[:, :held])
    call = {**OPTIONS, "max_new_tokens": 17}
    plain = plainly(model, ids, **call, **{cache_key(model): theirs})
    for kind in ("all", "spoiled") if held == 4 else ("all",):
        mine, drafter, seen = read(model, ids[:, :held]), scripted(model, plain.sequences, PATTERNS[kind]), []
        with spying(drafter, seen):
            drafted = generate(model, ids, assistant=drafter, **call, **{cache_key(model): mine})
        assert torch.equal(drafted.sequences, plain.sequences)
        assert_left_as_plain(model, mine, theirs)
        injected = [place for what, places in seen if what == "inject" for place in places]
        assert injected == list(range(held, injected[-1] + 1)), "each verified token once, at its own position"
        blocks = [places for what, places in seen if what == "block"]
        assert [places[0] for places in blocks] == _anchors(ids.shape[1])
        if kind == "all":
            assert [record.accepted for record in last_trace().rounds] == [7, 7], "acceptance is what it would be"


def _anchors(prompt_length):
    """Where each drafting round's anchor stands, by the trace."""
    rounds = last_trace().rounds
    starts = [prompt_length + sum(record.committed for record in rounds[:number]) for number in range(len(rounds))]
    return [start for start, record in zip(starts, rounds, strict=True) if record.drafted]


class spying:
    """Writes down the positions of every injection and of every block a drafter is given."""

    def __init__(self, drafter, seen):
        self.drafter, self.seen = drafter, seen

    def __enter__(self):
        inject, seen = self.drafter.inject, self.seen

        def inject_and_tell(taps, positions, context):
            seen.append(("inject", positions[0].tolist()))
            return inject(taps, positions, context)

        self.drafter.inject = inject_and_tell
        self.handle = self.drafter.register_forward_pre_hook(
            lambda _m, _a, kwargs: seen.append(("block", kwargs["position_ids"][0].tolist())), with_kwargs=True
        )

    def __exit__(self, *_):
        del self.drafter.inject
        self.handle.remove()


@pytest.mark.parametrize("target", ["llama", "mistral"])
def test_a_foreign_cache_under_left_padding_keeps_true_positions(targets, target):
    model, padding = targets(target), 3
    ids = torch.cat([torch.zeros_like(IDS[:, :padding]), prompt(9)], dim=1)
    mask = (torch.arange(ids.shape[1]) >= padding).long()[None]
    caches = [read(model, ids[:, :6], mask[:, :6]) for _ in range(2)]
    call = {**OPTIONS, "attention_mask": mask}
    plain = plainly(model, ids, **call, **{cache_key(model): caches[0]})
    drafter, seen = scripted(model, plain.sequences[:, padding:]), []
    with spying(drafter, seen):
        drafted = generate(model, ids, assistant=drafter, **call, **{cache_key(model): caches[1]})
    assert torch.equal(drafted.sequences, plain.sequences)
    assert_left_as_plain(model, caches[1], caches[0])
    assert seen[0] == ("inject", [3, 4, 5, 6, 7, 8])
    assert sum(record.accepted for record in last_trace().rounds) == NEW - 2


def test_two_conversations_taking_turns_do_not_mix(targets):
    """A, B, A, B ... on one attached pair, each with its own cache."""
    model, others = targets("mistral"), prompt(5, seed=9)
    key, starts = cache_key(model), (IDS, others)
    theirs = [DynamicCache(config=model.config) for _ in starts]
    plain = [
        converse(model, "full ids", [plainly] * TURNS, cache, ids) for cache, ids in zip(theirs, starts, strict=True)
    ]
    dflash_hf.attach(model, scripted(model, plain[0][-1], PATTERNS["spoiled"]))
    try:
        mine, whole = [DynamicCache(config=model.config) for _ in starts], list(starts)
        for turn in range(TURNS):
            for who in (0, 1):
                output = model.generate(whole[who], **OPTIONS, **{key: mine[who]})
                assert torch.equal(output.sequences, plain[who][turn])
                whole[who] = torch.cat([output.sequences, SAID[min(turn, 1)]], dim=1)
        for a, b in zip(mine, theirs, strict=True):
            assert_left_as_plain(model, a, b)
    finally:
        dflash_hf.detach(model)
