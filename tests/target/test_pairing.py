"""Pairs that cannot work are refused with both sides named; doubtful ones are warned of."""

from __future__ import annotations

import pytest
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import CheckpointError, IncompatiblePairError, UnsupportedTargetError
from dflash_hf.target.pairing import check_pair
from dflash_hf.target.view import view_target
from tests.families import SIZES, Family
from tests.hybrids import DISCONTINUOUS
from tests.scripted import tiny_config
from tests.tiny import VOCAB, build_target, tiny_target


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target_hidden_size": 48}, "taps of width 48, the target's are 32"),
        ({"hidden_size": 48, "target_hidden_size": 32}, "48 wide.*embedding and head.*32 wide"),
        ({"target_layer_ids": [0, 4]}, r"taps layer 4, the target has 4 layers \(0 to 3\)"),
        ({"target_layer_ids": [-2, 2]}, "taps layer -2"),
        ({"num_target_layers": 36}, "36 layers, this one has 4"),
        ({"mask_token_id": VOCAB}, f"mask token is id {VOCAB}, the target embeds ids 0 to {VOCAB - 1}"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_check_pair_refuses_and_names_both_sides(changes, says):
    target = tiny_target()
    drafter = DFlashDrafter(tiny_config(target, target_name="org/Trained-For", **changes))
    with pytest.raises(IncompatiblePairError, match=says) as caught:
        check_pair(target, drafter)
    assert "org/Trained-For" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"target_layer_ids": [1, 1]}, "twice"), ({"mask_token_id": 5}, "end-of-text"), ({"target_name": "a/B"}, "a/B")],
    ids=["duplicate", "mask_is_eos", "other_target"],
)
def test_check_pair_warns_of_what_is_hardly_meant(changes, says):
    target = tiny_target()
    target.config.eos_token_id = 5
    with pytest.warns(UserWarning, match=says):
        check_pair(target, DFlashDrafter(tiny_config(target, **changes)))


def test_check_pair_fills_the_ids_a_pipeline_compares():
    target = tiny_target()
    drafter = DFlashDrafter(tiny_config(target))
    check_pair(target, drafter)
    assert (drafter.config.vocab_size, drafter.config.bos_token_id, drafter.config.pad_token_id) == (VOCAB, 1, 0)


def test_targets_that_cannot_be_drafted_for_are_refused_by_name():
    drafter = DFlashDrafter(tiny_config(tiny_target()))
    t5 = T5ForConditionalGeneration(T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=VOCAB))
    with pytest.raises(UnsupportedTargetError, match="encoder-decoder"):
        check_pair(t5, drafter)
    bert = BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32))
    with pytest.raises(UnsupportedTargetError, match="list of decoder layers|LM head"):
        check_pair(bert, drafter)
    with pytest.raises(UnsupportedTargetError, match="recurrent"):
        check_pair(build_target(DISCONTINUOUS["mamba"]), drafter)


def test_a_block_of_one_is_no_block():
    with pytest.raises(CheckpointError, match="block_size 1"):
        tiny_config(tiny_target(), block_size=1)


def test_flash_attention_is_refused_where_it_cannot_say_the_window():
    target = tiny_target()
    for rule, refused in (("query", False), ("anchor", True), ("context", True)):
        drafter = DFlashDrafter(tiny_config(target, layer_windows=[6, None], window_rule=rule))
        drafter.config._attn_implementation = "flash_attention_2"
        if refused:
            with pytest.raises(IncompatiblePairError, match="flash attention cannot mask"):
                check_pair(target, drafter)
        else:
            check_pair(target, drafter)


def test_a_head_that_is_called_decoder_is_not_taken_for_the_stack():
    config = {key: value for key, value in SIZES.items() if key not in ("num_key_value_heads", "head_dim")}
    view = view_target(build_target(Family("ModernBertDecoderConfig", config | {"local_attention": 8})))
    assert view.num_layers == 4 and view.head is not view.decoder
