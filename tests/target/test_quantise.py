"""The word of ``--quantization``: known, and told what is missing."""

from __future__ import annotations

import pytest
import torch

from dflash_hf.bench.pair import PairSource
from dflash_hf.cli.command import TargetOptions
from dflash_hf.cli.target import load_target
from dflash_hf.errors import OptionsError
from dflash_hf.target import quantise
from dflash_hf.target.quantise import quantization_config


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
