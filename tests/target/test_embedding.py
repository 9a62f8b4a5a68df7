"""Embeddings of a target whose embedding scales, is offloaded, or is packed: rows as they are, or scaled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dflash_hf.bench.alternatives import alternatives
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.generation.attach import generate
from dflash_hf.target.embedding import embed_raw
from dflash_hf.target.view import view_target
from tests.scripted import tiny_config
from tests.tiny import prompt, tiny_target

IDS = torch.tensor([[3, 1, 1, 95]])
SCALES = {"llama": (1.0, 1.0), "gemma2": (32**0.5, 32**0.5), "granite": (1.0, 3.0)}  # by the module, in all


def offloaded(kind: str, how: str, folder: Path) -> tuple[PreTrainedModel, Tensor]:
    """A tiny target under accelerate's hooks, and its embedding's rows as they were."""
    from accelerate import cpu_offload, disk_offload

    model = tiny_target(kind)
    rows = model.get_input_embeddings().weight.detach().clone()
    if how == "cpu":
        cpu_offload(model, execution_device="cpu")
    elif how == "disk":
        disk_offload(model, str(folder), execution_device="cpu")
    assert how == "memory" or model.get_input_embeddings().weight.device.type == "meta"
    return model, rows


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("how", ["memory", "cpu", "disk"])
@torch.no_grad()
def test_embed_gives_each_source_wherever_the_weight_is(kind: str, how: str, tmp_path: Path) -> None:
    model, rows = offloaded(kind, how, tmp_path)
    view, (inside, in_all) = view_target(model), SCALES[kind]
    assert torch.equal(view.embed(IDS, "target_rows"), rows[IDS])
    torch.testing.assert_close(view.embed(IDS, "target_module"), rows[IDS] * inside)
    torch.testing.assert_close(view.embed(IDS, "target"), rows[IDS] * in_all)
    assert how == "memory" or view.embedding.weight.device.type == "meta", "left as it was found"


@pytest.mark.parametrize("source", ["target", "target_module", "target_rows"])
@torch.no_grad()
def test_an_offloaded_target_is_drafted_for(source: str, tmp_path: Path) -> None:
    model, _ = offloaded("gemma2", "cpu", tmp_path)
    torch.manual_seed(5)
    drafter = DFlashDrafter(tiny_config(model, embedding=source)).eval()
    plain = model.generate(prompt(), max_new_tokens=8, do_sample=False)
    assert torch.equal(generate(model, prompt(), assistant=drafter, max_new_tokens=8, do_sample=False), plain)
    found = {each.config.embedding for each in alternatives(drafter.config, view_target(model))}
    assert found == {"target_rows" if source != "target_rows" else "target", source}


class Packed(nn.Embedding):
    """Rows held as small numbers and steps, unpacked when called: as quantised embeddings are."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__(*rows.shape)
        self.steps = rows.abs().amax(dim=1, keepdim=True) / 127
        self.weight = nn.Parameter((rows / self.steps).round().to(torch.int8), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        return self.weight[input].float() * self.steps[input]


def test_packed_rows_come_by_a_call() -> None:
    packed = Packed(torch.randn(96, 32))
    assert torch.equal(embed_raw(packed, IDS), packed(IDS))
    packed.embed_scale = torch.tensor(5.0)
    with pytest.raises(
        UnsupportedTargetError, match="raw embedding rows, but the target.s Packed changes its rows.*quantised"
    ):
        embed_raw(packed, IDS)


def test_a_target_that_cannot_give_raw_rows_has_no_such_reading() -> None:
    model = tiny_target("llama")
    packed = Packed(model.get_input_embeddings().weight.detach())
    packed.embed_scale = torch.tensor(5.0)
    model.set_input_embeddings(packed)
    found = {each.field for each in alternatives(tiny_config(model), view_target(model))}
    assert "embedding" not in found and "layer_causal" in found


@pytest.mark.parametrize("bits", [8, 4])
def test_bitsandbytes_embeddings_give_rows(bits: int) -> None:
    library: Any = pytest.importorskip(
        "bitsandbytes", reason="bitsandbytes is not installed; runs with make test-quantised"
    )
    plain = nn.Embedding(96, 64)
    packed = (library.nn.Embedding8bit if bits == 8 else library.nn.Embedding4bit)(96, 64)
    packed.load_state_dict(plain.state_dict())
    packed = packed.to("cpu")  # it is packed on its way
    assert not packed.weight.is_floating_point()
    rows = embed_raw(packed, IDS)
    assert rows.shape == (1, 4, 64) and (rows - plain(IDS)).abs().max() < (0.05 if bits == 8 else 0.6)
