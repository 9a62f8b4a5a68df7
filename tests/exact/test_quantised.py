"""Quantised targets: every token is the plain model's, or within a near tie of it; what reads weights knows."""

from __future__ import annotations

from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from dflash_hf.bench.judge import judge, parts_at_near_tie
from dflash_hf.bench.provenance import describe_model
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import OptionsError, TrainingError
from dflash_hf.generation.attach import generate
from dflash_hf.generation.pair import load_pair
from dflash_hf.generation.record import last_trace
from dflash_hf.target import quantise
from dflash_hf.target.packing import PackedWeights
from dflash_hf.target.plain_weights import is_quantised
from dflash_hf.target.view import view_target
from dflash_hf.training.heads import head_parameters
from dflash_hf.training.start import _copy_layers
from tests.exact.same import drafter_for
from tests.scripted import tiny_config
from tests.tiny import greedy, prompt, tiny_target

pytestmark = pytest.mark.slow  # bitsandbytes is 43 MB: `make test-slow` and `make test-quantised` install it
pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed; runs with make test-quantised")

NEW = 20
NF4: dict[str, Any] = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
INT8: dict[str, Any] = {"load_in_8bit": True}
ALL = {"llm_int8_skip_modules": ["nothing"]}  # by default the head stays as it is
# name: bitsandbytes' options, dtype, and whether rows of a block do not see each other (the text is then exact)
KINDS: dict[str, tuple[dict[str, Any], torch.dtype, bool]] = {
    "nf4": (NF4, torch.float32, True),
    "nf4_head": (NF4 | ALL, torch.float32, True),
    "nf4_bfloat16": (NF4, torch.bfloat16, False),
    "int8": (INT8, torch.float32, False),
    "int8_head": (INT8 | ALL, torch.float32, False),
    "int8_bfloat16": (INT8, torch.bfloat16, False),
}


@lru_cache(maxsize=len(KINDS))
def target(kind: str) -> PreTrainedModel:
    options, dtype, _ = KINDS[kind]
    plain = tiny_target("llama")
    with torch.no_grad():  # near the sizes of real weights: int8 quantises what comes in, and noise grows with depth
        plain.get_output_embeddings().weight.mul_(4)
    with TemporaryDirectory() as folder:
        plain.save_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=BitsAndBytesConfig(**options), dtype=dtype
        ).eval()


@pytest.mark.parametrize("pattern", ["all", "spoiled"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_quantised_target_drafts_its_own_text(kind, pattern):
    model, exact = target(kind), KINDS[kind][2]
    assert is_quantised(model)
    plain = greedy(model, prompt(), NEW)
    dtypes = {name: weight.dtype for name, weight in model.named_parameters()}
    drafted = generate(
        model, prompt(), assistant=drafter_for(model, plain, pattern), max_new_tokens=NEW, do_sample=False
    )
    assert dtypes == {name: weight.dtype for name, weight in model.named_parameters()}
    mine, theirs = (text[0, prompt().shape[1] :].tolist() for text in (drafted, plain))
    if exact:
        assert mine == theirs
        accepted = [record.accepted for record in last_trace().rounds]
        assert pattern != "all" or accepted[:-1] == [7] * (len(accepted) - 1)
        return
    verdict = judge(model, prompt(), mine)
    assert parts_at_near_tie(theirs, mine, verdict), (verdict.noise, [verdict.gaps[p] for p in verdict.failures])
    assert judge(model, prompt(), theirs).gaps == [0.0] * NEW, "plain text is what is judged by"
    assert sum(record.accepted for record in last_trace().rounds) > 0


def test_float32_4_bit_model_has_no_noise_of_its_own_and_int8_has():
    texts = {kind: greedy(target(kind), prompt(), 8)[0, prompt().shape[1] :].tolist() for kind in ("nf4", "int8")}
    noise = {kind: judge(target(kind), prompt(), text).noise for kind, text in texts.items()}
    assert noise["nf4"] < 1e-4 < noise["int8"]


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_judge_finds_a_wrong_token_in_a_quantised_models_text(kind):
    model = target(kind)
    text = greedy(model, prompt(), 8)[0, prompt().shape[1] :].tolist()
    with torch.no_grad():
        logits = model(torch.cat([prompt(), torch.tensor([text[:5]])], dim=1)).logits[0, -1]
    middling = int(logits.argsort()[len(logits) // 2])
    verdict = judge(model, prompt(), [*text[:5], middling])
    assert verdict.failures == [5] and verdict.noise < verdict.gaps[5] / 8


def test_packing_leaves_quantised_layers_alone():
    model = target("nf4")
    with PackedWeights([model], "always") as packed:
        taken = [name for name, part in model.named_modules() if "forward" in vars(part)]
        assert taken == ["lm_head"] and packed.bytes == model.lm_head.weight.numel() * 4


@pytest.mark.parametrize("kind", ["nf4_head", "int8_head"])
def test_training_refuses_a_quantised_head(kind):
    with pytest.raises(TrainingError, match="is a Linear.*; load the target unquantised"):
        head_parameters(view_target(target(kind)))


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_training_refuses_to_copy_quantised_layers(kind):
    view = view_target(target(kind))
    with pytest.raises(TrainingError, match="layer 1 of .* is quantised and cannot be copied; .* set warm_layers to"):
        _copy_layers(view, DFlashDrafter(tiny_config(view.model)), (1, 2))


@pytest.mark.parametrize("quantization", quantise.QUANTIZATIONS)
@pytest.mark.parametrize(("asked", "drafters"), [("auto", torch.bfloat16), (torch.float32, torch.float32)])
def test_load_pair_quantises_the_target_and_leaves_the_drafter_its_dtype(quantization, asked, drafters, tmp_path):
    plain = tiny_target("llama")
    plain.save_pretrained(tmp_path / "target")
    DFlashDrafter(tiny_config(plain)).bfloat16().save_pretrained(tmp_path / "drafter")
    model, drafter = load_pair(tmp_path / "target", tmp_path / "drafter", quantization=quantization, dtype=asked)
    assert is_quantised(model) and not is_quantised(drafter)
    assert {parameter.dtype for parameter in drafter.parameters()} == {drafters}
    assert model.dtype == torch.float32
    bits = "8-bit" if quantization == "bnb-8bit" else "4-bit nf4"
    assert describe_model(model)["quantization"] == f"bitsandbytes {bits}"
    assert model.generate(prompt(), max_new_tokens=8, do_sample=False).shape[1] == prompt().shape[1] + 8
    with pytest.raises(OptionsError, match="quantises a target as it is loaded here"):
        load_pair(model, drafter, quantization=quantization)


def test_drafter_beside_a_model_that_its_user_quantised_keeps_its_dtype(tmp_path):
    DFlashDrafter(tiny_config(target("nf4"))).bfloat16().save_pretrained(tmp_path)
    assert load_pair(target("nf4"), tmp_path)[1].dtype == torch.bfloat16
