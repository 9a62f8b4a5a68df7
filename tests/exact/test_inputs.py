"""Every way to hand ``generate`` a prompt gives plain's answer, or plain's error."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch

import dflash_hf
from dflash_hf.errors import UnsupportedCallError
from dflash_hf.generation.attach import generate
from tests.exact.same import PATTERNS, assert_equal_outputs, assert_same, drafter_for
from tests.exact.unchanged import Unchanged
from tests.scripted import scripted
from tests.tiny import prompt, tiny_target

IDS = prompt()
NEW = 11
OPTIONS = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
KINDS = ("all", "spoiled")  # what a prompt is does not depend on more
MID, RIGHT, LEFT = [1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]
ALIKE = {  # by name: (target, prompt, further arguments)
    "ids": ("llama", IDS, {}),
    "int32 ids": ("llama", IDS.int(), {}),
    "one token": ("llama", IDS[:, :1], {}),
    "one token, window": ("mistral", IDS[:, :1], {}),
    "one token, convolutions": ("lfm2", IDS[:, :1], {}),
    "no prompt": ("llama", None, {}),
    "mask token in the prompt": ("llama", torch.tensor([[5, 1, 1, 9, 1]]), {}),
    "padding guessed from the ids": ("llama", torch.cat([torch.zeros_like(IDS[:, :3]), IDS], dim=1), {}),
    "mask of ones": ("llama", IDS, {"attention_mask": torch.ones_like(IDS)}),
    "mask None": ("llama", IDS, {"attention_mask": None}),
    "bool mask": ("llama", IDS, {"attention_mask": torch.ones_like(IDS).bool()}),
    "bool mask, left padding": ("llama", IDS, {"attention_mask": torch.tensor([LEFT]).bool()}),
    "float mask, left padding": ("llama", IDS, {"attention_mask": torch.tensor([LEFT]).float()}),
    "mask of zeros": ("llama", IDS, {"attention_mask": torch.zeros_like(IDS)}),
    **{
        f"{where} padding, {kind}": (kind, IDS, {"attention_mask": torch.tensor([mask])})
        for kind in ("llama", "mistral", "gpt2", "lfm2")
        for where, mask in (("left", LEFT), ("inner", MID), ("right", RIGHT))
    },
    "positions from 50": ("llama", IDS, {"position_ids": torch.arange(50, 57)[None]}),
    "positions from 50, table": ("gpt2", IDS, {"position_ids": torch.arange(50, 57)[None]}),
    "positions with gaps": ("llama", IDS, {"position_ids": torch.tensor([[0, 1, 2, 2, 2, 3, 9]])}),
    "logits_to_keep all": ("llama", IDS, {"logits_to_keep": 0}),
    "logits_to_keep 3": ("llama", IDS, {"logits_to_keep": 3}),
    "token types": ("gpt2", IDS, {"token_type_ids": torch.tensor([[3, 4, 5, 6, 7, 8, 9]])}),
    "token types, one token": ("gpt2", IDS[:, :1], {"token_type_ids": torch.tensor([[3]])}),
    "token types, left padding": (
        "gpt2", IDS, {"token_type_ids": torch.tensor([[0, 0, 5, 6, 7, 8, 9]]), "attention_mask": torch.tensor([LEFT])},
    ),
    "token types in chunks": ("gpt2", IDS, {"token_type_ids": torch.arange(3, 10)[None], "prefill_chunk_size": 3}),
    "router logits asked for": ("qwen3_moe", IDS, {"output_router_logits": True}),
    "use_cache said": ("llama", IDS, {"use_cache": True}),
}  # fmt: skip
EMBEDDED = {  # beside inputs_embeds
    "alone": {},
    "with ids": {"input_ids": IDS},
    "with a mask": {"attention_mask": torch.tensor([LEFT])},
    "with ids and a mask": {"input_ids": IDS, "attention_mask": torch.tensor([LEFT])},
    "with positions": {"position_ids": torch.arange(20, 27)[None]},
    "up to max_length": {"input_ids": IDS, "max_length": 20, "max_new_tokens": None},
}
REFUSED_BY_PLAIN = {
    "one axis": {"inputs": IDS[0]},
    "three axes": {"inputs": IDS[None]},
    "empty ids": {"inputs": IDS[:, :0]},
    "empty embeddings": {"inputs_embeds": torch.zeros(1, 0, 32)},
    "no rows": {"inputs": IDS[:0]},
    "twice": {"inputs": IDS, "input_ids": IDS},
    "a list": {"inputs": IDS.tolist()},
    "floats": {"inputs": IDS.float()},
    "ids outside the vocabulary": {"inputs": IDS + 90},
    "cache_position": {"inputs": IDS, "cache_position": torch.arange(7)},
    "a typo": {"inputs": IDS, "atention_mask": torch.ones_like(IDS)},
    "a mask too short": {"inputs": IDS, "attention_mask": torch.ones(1, 5)},
    "a mask with four axes": {"inputs": IDS, "attention_mask": torch.ones(1, 1, 7, 7)},
    "positions with one axis": {"inputs": IDS, "position_ids": torch.arange(7)},
    "no room": {"inputs": IDS, "max_length": 4, "max_new_tokens": None},
    "nothing to do": {"inputs": IDS, "max_new_tokens": 0},
}


@pytest.fixture(scope="module")
def targets():
    made = {}
    return lambda kind: made.setdefault(kind, tiny_target(kind))


@pytest.mark.parametrize("row", sorted(ALIKE))
def test_a_prompt_gives_plains_answer(targets, row):
    target, ids, more = ALIKE[row]
    model, call = targets(target), {**OPTIONS, **more}
    plain = type(model).generate(model, ids, **call)
    for kind in KINDS:
        drafter = drafter_for(model, plain.sequences, kind)
        assert_equal_outputs(generate(model, ids, assistant=drafter, **call), plain)


@pytest.mark.parametrize("row", sorted(EMBEDDED))
def test_embeddings_give_plains_answer(targets, row):
    model, more = targets("llama"), EMBEDDED[row]
    call = {**OPTIONS, **more, "inputs_embeds": model.get_input_embeddings()(IDS)}
    assert call["inputs_embeds"].requires_grad
    plain = type(model).generate(model, **call)
    made = plain.sequences.shape[1] - (IDS.shape[1] if "input_ids" in more else 0)
    assert made == (13 if "max_length" in more else NEW), "the prompt is in the output only if its ids were given"
    for kind in KINDS:
        drafter = drafter_for(model, torch.cat([IDS, plain.sequences[:, -made:]], dim=1), kind)
        drafted = generate(model, assistant=drafter, **call)
        assert_equal_outputs(drafted, plain)
        assert not drafted.sequences.requires_grad and not drafted.scores[0].requires_grad


def test_ids_by_keyword_and_by_place_are_the_same(targets):
    model, call = targets("llama"), {"max_new_tokens": NEW, "do_sample": False}
    plain = type(model).generate(model, IDS, **call)
    for given in ({"input_ids": IDS}, {"inputs": IDS}):
        drafter = scripted(model, plain)
        assert torch.equal(generate(model, assistant=drafter, **given, **call), plain)
        assert drafter.calls == 2


@pytest.mark.parametrize("row", sorted(REFUSED_BY_PLAIN))
def test_what_plain_cannot_read_raises_plains_error(targets, row):
    model, kinds = targets("llama"), []
    call = {"max_new_tokens": 4, "do_sample": False, **REFUSED_BY_PLAIN[row]}
    for run in (type(model).generate, generate):
        more = {"assistant": scripted(model, IDS)} if run is generate else {}
        with pytest.raises(Exception) as caught:
            run(model, **more, **call)
        kinds.append(type(caught.value))
    assert kinds[0] is kinds[1]


def test_no_prompt_and_no_bos_raises_plains_error():
    model = tiny_target()
    model.generation_config.bos_token_id = None
    for more in ({}, {"assistant": scripted(model, IDS)}):
        with pytest.raises(ValueError, match="bos_token_id"):
            dflash_hf.attach(model).generate(max_new_tokens=4, **more)


@pytest.mark.parametrize("kind", ["all", "none", "spoiled"])
@pytest.mark.parametrize("mask", [0, 44])
def test_a_mask_token_the_target_writes_stays_in_the_text(targets, mask, kind):
    """The bias makes the target write the drafter's mask token, again and again; nothing may filter it out."""
    seen = []

    class Stream:
        put = staticmethod(lambda value: seen.extend(value.flatten().tolist()))
        end = staticmethod(lambda: None)

    call = {"max_new_tokens": NEW, "do_sample": False, "sequence_bias": {(mask,): 17.0}}
    model = targets("llama")
    if mask == model.generation_config.pad_token_id:
        call["attention_mask"] = torch.ones_like(IDS)
    drafted, plain = assert_same(model, IDS, lambda: {**call, "streamer": Stream()}, kind, mask_token_id=mask)
    count = drafted[0, IDS.shape[1] :].tolist().count(mask)
    assert 3 <= count < NEW, "the target writes it, among others"
    assert seen == [*plain[0].tolist(), *drafted[0].tolist()]


@pytest.mark.parametrize(("mask", "meaning"), [(0, "padding"), (5, "end-of-text")])
def test_a_mask_token_with_another_meaning_is_warned_of_once(mask, meaning):
    model = tiny_target()
    model.generation_config.eos_token_id = 5
    call = {"max_new_tokens": NEW, "do_sample": False}
    plain = type(model).generate(model, IDS, **call)
    drafter = scripted(model, plain, mask_token_id=mask)
    with pytest.warns(UserWarning, match=f"mask token {mask} is the target's {meaning} token"):
        dflash_hf.check_pair(model, drafter)
    with pytest.warns(UserWarning, match=meaning) as caught:
        dflash_hf.attach(model, drafter)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(model.generate(IDS, **call), plain)
        assert torch.equal(model.generate(IDS, assistant=drafter, **call), plain)


def test_every_other_drafter_is_warned_of_even_where_the_last_one_lay():
    """Drafters come and go; a new one at the address of an old one is a new one."""
    model, call = dflash_hf.attach(tiny_target()), {"max_new_tokens": 2, "do_sample": False}
    for _ in range(12):
        drafter = drafter_for(model, IDS, "random", mask_token_id=0)
        with pytest.warns(UserWarning, match="padding") as caught:
            model.generate(IDS, assistant=drafter, **call)
        assert len(caught) == 1 and caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.generate(IDS, assistant=drafter, **call)
        del drafter


@pytest.mark.parametrize("which", ["target", "drafter", "both"])
def test_a_model_in_train_mode_gives_its_text_and_stays_in_train_mode(targets, which):
    model = tiny_target("mistral")
    plain = type(model).generate(model, IDS, max_new_tokens=NEW, do_sample=False)
    drafter = scripted(model, plain, PATTERNS["spoiled"])
    dflash_hf.attach(model, drafter)
    model.train(which != "drafter")
    drafter.train(which != "target")
    with Unchanged(model, drafter):
        drafted = model.generate(IDS, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(drafted, plain)
    assert model.training is (which != "drafter") and drafter.training is (which != "target")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad, nullcontext])
def test_the_gradient_mode_changes_nothing_and_no_graph_is_kept(targets, mode):
    model = targets("llama")
    assert all(parameter.requires_grad for parameter in model.parameters())
    with mode():
        drafted, plain = assert_same(model, IDS, lambda: OPTIONS)
        here = torch.is_inference_mode_enabled()
    tensors = [drafted.sequences, *drafted.scores]
    assert not any(tensor.requires_grad for tensor in tensors)
    assert all(tensor.is_inference() == here for tensor in (*tensors, plain.sequences))
    again, _ = assert_same(model, IDS, lambda: OPTIONS)
    assert torch.equal(again.sequences, plain.sequences)


def test_use_cache_false_is_refused(targets):
    model = targets("llama")
    with pytest.raises(UnsupportedCallError, match="use_cache=False"):
        generate(model, IDS, assistant=scripted(model, IDS), max_new_tokens=4, use_cache=False)
