"""The code a reader copies runs: README's and quickstart's examples, a tiny pair in place of the two Hub ids."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import dflash_hf

ROOT = Path(__file__).parents[2]
TARGET, DRAFTER = "Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16"


def example(page: str) -> str:
    """The page's first Python block: the whole program, from its imports on."""
    found = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{page} has no Python example"
    return found.group(1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of a tiny Qwen3 with a byte-level tokenizer, and of a drafter for it, by the ids they stand for."""
    torch.manual_seed(0)
    target_folder, drafter_folder = (tmp_path_factory.mktemp(name) for name in ("target", "drafter"))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=letters).save_pretrained(target_folder)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    target = Qwen3ForCausalLM(
        Qwen3Config(**sizes, head_dim=8, vocab_size=260, num_hidden_layers=3, initializer_range=0.3, eos_token_id=None)
    )
    target.save_pretrained(target_folder)
    drafter = dflash_hf.DFlashDrafter(
        dflash_hf.DFlashConfig(
            **sizes, head_dim=8, num_hidden_layers=1, target_layer_ids=[0, 2], block_size=4, mask_token_id=259
        )
    )
    drafter.save_pretrained(drafter_folder)
    return {TARGET: str(target_folder), DRAFTER: str(drafter_folder)}


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_example_prints_the_plain_text(page: str, pair: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code = example(page)
    assert "dflash_hf.attach(target)" in code
    for name, folder in pair.items():
        assert f'"{name}"' in code
        code = code.replace(f'"{name}"', repr(folder))
    exec(compile(code, page, "exec"), {})
    printed = capsys.readouterr().out

    tokenizer = AutoTokenizer.from_pretrained(pair[TARGET])
    plain = AutoModelForCausalLM.from_pretrained(pair[TARGET], dtype="auto")
    inputs = tokenizer("def fibonacci(n):", return_tensors="pt")
    text = tokenizer.decode(plain.generate(**inputs, max_new_tokens=128)[0], skip_special_tokens=True)
    assert printed.startswith(text)
    trace = dflash_hf.last_trace()
    assert trace is not None and trace.fallback is None
    assert len(trace.tokens) == 128
    assert trace.metrics()["num_draft_tokens"] > 0


def test_example_in_readme_has_eight_lines() -> None:
    assert len([line for line in example("README.md").splitlines() if line]) == 8


def test_troubleshooting_quotes_what_an_unattached_model_raises(pair: dict[str, str]) -> None:
    target = AutoModelForCausalLM.from_pretrained(pair[TARGET], dtype="auto")
    drafter = dflash_hf.DFlashDrafter.from_pretrained(pair[DRAFTER], target=target)
    with pytest.raises(ValueError, match="assistant") as raised:
        target.generate(torch.tensor([[1, 2, 3]]), assistant=drafter, max_new_tokens=2)
    assert f"ValueError: {raised.value}" in (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
