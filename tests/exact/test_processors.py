"""Every processor transformers has: drafted text, scores and logits are those of plain decoding."""

from __future__ import annotations

import inspect
import re
from functools import cache

import pytest
import torch
from transformers import GenerationMixin

from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from tests.exact.processor_rows import CONSTRUCTED, EVERYTHING, RAISING, ROWS, WORKING
from tests.exact.same import PATTERNS, assert_equal_outputs, drafter_for
from tests.tiny import prompt, tiny_target

BY_OPTION = {row.name for row in ROWS if row.door == "option"}  # the second door needs no second look at rejection


@pytest.fixture(scope="module")
def model():
    return target()


@cache
def target():
    return tiny_target()


def plain(ids, options):
    return type(target()).generate(target(), ids, **{**EVERYTHING, **options})


def accepted():
    return sum(record.accepted for record in last_trace().rounds)


def needs(row):
    if row.missing is not None:
        pytest.skip(row.missing)


def test_every_processor_of_transformers_has_a_row():
    assert set(CONSTRUCTED) <= {row.name for row in ROWS}


def test_every_option_that_makes_a_processor_has_a_row(model):
    source = inspect.getsource(GenerationMixin._get_logits_processor)
    built = set(re.findall(r"\b(\w+)\(", source)) & set(CONSTRUCTED)
    assert built <= BY_OPTION
    read = set(re.findall(r"generation_config\.([a-z]\w*)", source))
    of_the_call = {"do_sample", "max_length", "num_beams", "num_return_sequences", "use_cache"}
    written = {key for row in ROWS if row.door == "option" and not row.missing for key in row.call(model)}
    assert read - of_the_call <= written


@cache
def answer(row):
    """The row's ids, the arguments of its plain run (the processor has been used), and what plain gave."""
    ids, call = row.ids(target()), row.call(target())
    return ids, call, plain(ids, call)


@pytest.mark.parametrize("row", WORKING, ids=str)
def test_a_processor_gives_what_plain_gives_with_every_drafter(model, row):
    needs(row)
    ids, used, expected = answer(row)
    for kind in PATTERNS if row.name not in BY_OPTION or row.door == "option" else ("all", "spoiled"):
        call, drafter = row.call(model), drafter_for(model, expected.sequences, kind)
        drafted = generate(model, ids, assistant=drafter, **{**EVERYTHING, **call})
        assert_equal_outputs(drafted, expected)
        if row.seen is not None:
            assert torch.equal(row.seen(call["logits_processor"][0]), row.seen(used["logits_processor"][0]))
        if kind == "all" and len(expected.scores) > 1:
            assert accepted(), "the draft must have been at work"


@pytest.mark.parametrize("row", WORKING, ids=str)
def test_a_row_of_the_table_changes_something(model, row):
    needs(row)
    ids, used, expected = answer(row)
    if row.seen is not None:
        fresh = row.call(model)["logits_processor"][0]
        assert list(row.seen(used["logits_processor"][0])) != list(row.seen(fresh))
        return
    without = plain(ids, row.without)
    same = [torch.equal(one, other) for one, other in zip(expected.scores, without.scores, strict=False)]
    assert not all(same) or len(same) < max(len(expected.scores), len(without.scores))


@pytest.mark.parametrize("row", RAISING, ids=str)
def test_a_processor_that_plain_cannot_run_raises_the_same_drafted(model, row):
    needs(row)
    with pytest.raises(row.raises) as theirs:
        plain(row.ids(model), row.call(model))
    drafter = drafter_for(model, prompt(30), "all")
    with pytest.raises(row.raises) as ours:
        generate(model, row.ids(model), assistant=drafter, **{**EVERYTHING, **row.call(model)})
    assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))
    assert drafter.calls == 0
