"""A pair from folders, and what is said when one of the two cannot be had."""

from __future__ import annotations

import pytest
import torch

import dflash_hf
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import CheckpointError, HubError, OptionsError, UnsupportedTargetError
from tests.scripted import tiny_config
from tests.tiny import greedy, prompt, tiny_target


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, target = tmp_path_factory.mktemp("pair"), tiny_target()
    target.save_pretrained(root / "target")
    DFlashDrafter(tiny_config(target)).to(torch.bfloat16).save_pretrained(root / "drafter")
    return root / "target", root / "drafter"


def test_load_pair_attaches_and_puts_the_drafter_in_the_targets_dtype(folders):
    model, drafter = dflash_hf.load_pair(*folders, dtype=torch.float32)
    assert drafter.dtype == model.dtype == torch.float32
    assert torch.equal(model.generate(prompt(), max_new_tokens=9, do_sample=False), greedy(model, prompt(), 9))
    assert dflash_hf.last_trace().drafter == "drafter" and dflash_hf.last_trace().target == "target"


def test_load_pair_leaves_what_it_was_given_as_it_is(folders):
    target = tiny_target().train()
    drafter = DFlashDrafter.from_pretrained(folders[1])
    model, same = dflash_hf.load_pair(target, drafter)
    assert model is target and same is drafter
    assert target.training and drafter.dtype == torch.bfloat16


def test_load_pair_says_which_of_the_two_is_missing_and_why(folders):
    target, drafter = folders
    with pytest.raises(HubError, match=r"/nowhere.*no folder"):
        dflash_hf.load_pair("/nowhere", drafter)
    with pytest.raises((HubError, CheckpointError), match="/nowhere"):
        dflash_hf.load_pair(target, "/nowhere")
    with pytest.raises(OptionsError, match="bfloat17"):
        dflash_hf.load_pair(target, drafter, dtype="bfloat17")
    with pytest.raises(OptionsError, match="attn_implementation=foo"):
        dflash_hf.load_pair(target, drafter, attn_implementation="foo")


def test_names_are_not_models(folders):
    with pytest.raises(OptionsError, match="loaded transformers model"):
        dflash_hf.attach("org/model")
    with pytest.raises(UnsupportedTargetError, match="loaded transformers model"):
        DFlashDrafter.from_pretrained(folders[1], target="org/model")


def test_a_drafter_is_never_written_over_another_model(folders, tmp_path):
    target = tiny_target()
    target.save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match=r"holds another model \(LlamaForCausalLM\)"):
        DFlashDrafter.from_pretrained(folders[1]).save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    again = DFlashDrafter.from_pretrained(folders[1])
    again.save_pretrained(folders[1])  # a drafter over a drafter is a save like any other
