"""Quantised targets: every token is the plain model's, or within a near tie of it; what reads weights knows."""

from __future__ import annotations

from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from dflash_hf.bench.judge import judge, parts_at_near_tie
from dflash_hf.errors import OptionsError, TrainingError
from dflash_hf.generation.attach import generate
from dflash_hf.generation.pair import load_pair
from dflash_hf.generation.record import last_trace
from dflash_hf.target import quantise
from dflash_hf.target.packing import PackedWeights
from dflash_hf.target.plain_weights import is_quantised
from dflash_hf.target.view import view_target
from dflash_hf.training.heads import head_parameters
from tests.exact.same import drafter_for
from tests.tiny import greedy, prompt, tiny_target

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install 'dflash-hf[quantize]'")

NEW = 32
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
