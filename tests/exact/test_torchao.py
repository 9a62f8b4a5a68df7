"""Weights quantised by torchao, and FP8 checkpoints, which transformers dequantises on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dflash_hf.bench.judge import judge, parts_at_near_tie
from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from dflash_hf.target.fingerprint import weights_fingerprint
from dflash_hf.target.plain_weights import is_quantised, unreadable
from dflash_hf.target.view import view_target
from tests.exact.same import assert_same, drafter_for
from tests.tiny import greedy, prompt, tiny_target

NEW = 20
CALL = {"max_new_tokens": NEW, "do_sample": False}


def quantised(config, seed: int = 0):
    """A tiny target whose linear layers, head included, torchao has quantised."""
    from torchao.quantization import quantize_

    model = tiny_target("llama", seed)
    quantize_(model, config)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["all", "spoiled"])
@pytest.mark.parametrize("bits", ["int8", "int8_dynamic"])
def test_torchao_target_drafts_its_own_text(bits, pattern):
    torchao = pytest.importorskip(
        "torchao.quantization", reason="torchao is not installed; runs after pip install torchao"
    )
    kind = torchao.Int8WeightOnlyConfig if bits == "int8" else torchao.Int8DynamicActivationInt8WeightConfig
    model = quantised(kind())
    assert is_quantised(model) and unreadable(model.lm_head.weight)
    plain = greedy(model, prompt(), NEW)
    drafted = generate(model, prompt(), assistant=drafter_for(model, plain, pattern), **CALL)
    mine, theirs = (text[0, prompt().shape[1] :].tolist() for text in (drafted, plain))
    assert parts_at_near_tie(theirs, mine, judge(model, prompt(), mine))
    assert sum(record.accepted for record in last_trace().rounds) > 0
    assert weights_fingerprint(model) != weights_fingerprint(quantised(kind(), seed=1))


@pytest.mark.slow
def test_fp8_checkpoint_is_dequantised_on_a_cpu_and_drafts(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(_fp8(tmp_path)).eval()
    assert torch.cuda.is_available() or not is_quantised(model)
    assert_same(model.float(), prompt(), lambda: dict(CALL))


def test_float8_weights_are_not_taken_for_numbers():
    model = tiny_target("llama")
    assert not is_quantised(model)
    head = model.lm_head
    head.weight = torch.nn.Parameter(head.weight.to(torch.float8_e4m3fn), requires_grad=False)
    assert is_quantised(model) and unreadable(head.weight) == "quantised"
    seen = []
    head.forward = lambda hidden: seen.append(hidden.dtype) or hidden
    view_target(model).project(torch.zeros(1, 32, dtype=torch.bfloat16))
    assert seen == [torch.float32], "what the target itself gives its head"


def _fp8(folder: Path, block: int = 16) -> Path:
    """A tiny target as an FP8 checkpoint with a scale per block, written as published ones are."""
    tiny_target("llama").save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name]
        blocks = weight.unflatten(1, (-1, block)).unflatten(0, (-1, block))  # [rows, block, columns, block]
        scale = blocks.abs().amax(dim=(1, 3)) / torch.finfo(torch.float8_e4m3fn).max
        packed = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        tensors[name] = packed.flatten(2, 3).flatten(0, 1).contiguous()
        tensors[f"{name}_scale_inv"] = scale
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [block, block],
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder
