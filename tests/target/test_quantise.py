"""The word of ``--quantization``: known, and told what is missing."""

from __future__ import annotations

import pytest
import torch

from dflash_hf.bench.pair import PairSource
from dflash_hf.cli.command import TargetOptions
from dflash_hf.cli.target import load_target
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import OptionsError
from dflash_hf.generation.pair import load_pair
from dflash_hf.target import quantise
from dflash_hf.target.quantise import quantization_config, stored_dtype
from tests.scripted import tiny_config
from tests.tiny import tiny_target


def test_unknown_quantization_is_refused_before_anything_is_loaded():
    with pytest.raises(OptionsError, match="quantization is one of bnb-8bit, bnb-4bit, not 'int3'"):
        PairSource(quantization="int3")
    with pytest.raises(OptionsError, match="not 'int3'"):
        load_target(TargetOptions(quantization="int3"))
    with pytest.raises(OptionsError, match="not 'int3'"):
        quantization_config("int3")


@pytest.mark.parametrize("name", quantise.QUANTIZATIONS)
def test_missing_bitsandbytes_is_one_sentence_with_the_way_out(name, monkeypatch):
    monkeypatch.setattr(quantise, "find_spec", lambda _name: None)
    with pytest.raises(OptionsError, match=r"needs bitsandbytes, .* pip install 'dflash-hf\[quantize\]'$"):
        PairSource(quantization=name)


def test_4_bit_layers_multiply_in_the_dtype_that_was_asked_for():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed; runs with make test-quantised")
    config = quantization_config("bnb-4bit", torch.bfloat16)
    assert config.load_in_4bit and config.bnb_4bit_quant_type == "nf4"
    assert config.bnb_4bit_compute_dtype == torch.bfloat16


@pytest.mark.parametrize("asked", ["auto", None, torch.float16])
def test_4_bit_layers_multiply_in_the_dtype_they_are_loaded_in(asked, tmp_path):
    """transformers would say float32 where it is told nothing, however the rest is loaded."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed; runs with make test-quantised")
    target = tiny_target().to(torch.bfloat16)
    target.save_pretrained(tmp_path)
    drafter = DFlashDrafter(tiny_config(target))
    loaded, _ = load_pair(str(tmp_path), drafter, quantization="bnb-4bit", dtype=asked, local_files_only=True)
    expected = asked if isinstance(asked, torch.dtype) else torch.bfloat16
    layer = loaded.model.layers[0].self_attn.q_proj
    assert layer.compute_dtype == loaded.dtype == expected


def test_the_stored_dtype_is_read_only_where_it_is_asked_for(tmp_path):
    target = tiny_target().to(torch.bfloat16)
    target.config.save_pretrained(tmp_path)
    assert stored_dtype("nowhere", torch.float16) == torch.float16
    assert stored_dtype(tmp_path, "auto", local_files_only=True, device_map="cpu") == target.config.dtype
