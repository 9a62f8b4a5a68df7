"""A tiny pair on disk, made so that acceptance is known.

The target's layers are too weak to change what its (tied) embedding says, so it repeats the prompt's last token. The
drafter's are as weak, so it proposes its mask token. A prompt that ends in the mask token is therefore drafted
perfectly, and one that ends in another token not at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from dflash_hf.checkpoints.reading import file_name
from dflash_hf.cli.app import app
from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter

WIDTH, LAYERS, BLOCK = 32, 3, 4


@dataclass(frozen=True)
class Files:
    target: Path
    drafter: Path
    other_target: Path  # too narrow for the drafter

    @property
    def options(self) -> list[str]:
        return [
            "--target",
            str(self.target),
            "--drafter",
            str(self.drafter),
            "--device-map",
            "cpu",
            "--local-files-only",
        ]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, so that any text survives and a character may be split."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    corpus = ["a walk along the river", "the answer is forty two", "def add(a, b): return a + b"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def _target(width: int, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=256,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_(0.0, 1.0)
    return model


def write_drafter(folder: Path, mask_token_id: int, rows: int) -> None:
    torch.manual_seed(1)
    shape = {
        "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    taps = [0, 2]
    config = DFlashConfig(**shape, target_layer_ids=taps, block_size=BLOCK, mask_token_id=mask_token_id)
    folder.mkdir()
    state = {file_name(name): tensor for name, tensor in DFlashDrafter(config).state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    written = {
        **shape, "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": BLOCK,
        "num_target_layers": LAYERS, "dflash_config": {"mask_token_id": mask_token_id, "target_layer_ids": taps},
        "hidden_act": "silu", "attention_bias": False, "rope_theta": 10000.0, "rope_scaling": None,
        "layer_types": ["full_attention"] * 2, "use_sliding_window": False, "sliding_window": None,
        "vocab_size": rows, "dtype": "float32", "transformers_version": "5.0.0",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(written))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    root = tmp_path_factory.mktemp("pair")
    tokenizer = tiny_tokenizer()
    for name, width in (("target", WIDTH), ("other", 2 * WIDTH)):
        _target(width, tokenizer).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    mask = tokenizer("o")["input_ids"][-1]
    write_drafter(root / "drafter", mask, len(tokenizer))
    return Files(root / "target", root / "drafter", root / "other")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """Run a command in this process; the result has stdout, stderr and the exit code."""
    for name in ("NO_COLOR", "FORCE_COLOR", "DFLASH_HF_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*arguments: str, **options):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)

    return invoke
