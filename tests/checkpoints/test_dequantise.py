"""Quantised files load as the plain weights they stand for, in their dialect; other kinds are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError
from tests.checkpoints.described_files import laguna, lfm
from tests.checkpoints.quantised_files import Quantiser, fp8, groups, integers, quantised
from tests.checkpoints.tiny import tiny_config, tiny_tensors, write_tiny

FP8 = {"quant_method": "fp8", "weight_block_size": [5, 7]}
INT = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
GROUP4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 8}
PACKED4 = groups(format="pack-quantized", **GROUP4)

KINDS: dict[str, tuple[dict[str, Any] | None, Quantiser]] = {
    "FP8 by block": (FP8, fp8((5, 7), "weight_scale_inv")),
    "FP8 by tensor": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8(None, rank=0)),
    "FP8 by tensor, nothing said": (None, fp8(None)),
    "FP8 by row": (groups(num_bits=8, type="float", strategy="channel"), fp8((1, 99))),
    "FP8 by row, flat": ({"quant_method": "fbgemm_fp8"}, fp8((1, 99), rank=1)),
    "FP8 by compressed-tensors' block": (
        groups(num_bits=8, type="float", strategy="block", block_structure="3x5"),
        fp8((3, 5)),
    ),
    "8-bit integers by row": (groups(format="int-quantized", **INT), integers(8, None)),
    "8-bit integers by group": (groups(format="naive-quantized", **INT | {"group_size": 5}), integers(8, 5)),
    "8-bit integers with zero points": (
        groups(format="int-quantized", **INT | {"symmetric": False}),
        integers(8, None, asymmetric=True),
    ),
    "packed 4-bit integers by group": (PACKED4, integers(4, 8, packed=True)),
    "packed 4-bit integers by row": (
        groups(format="pack-quantized", **GROUP4 | {"group_size": None, "strategy": "channel"}),
        integers(4, None, packed=True),
    ),
    "packed 4-bit integers with zero points": (
        groups(format="pack-quantized", **GROUP4 | {"symmetric": False}),
        integers(4, 8, packed=True, asymmetric=True),
    ),
    "packed 8-bit integers": (groups(format="pack-quantized", **INT), integers(8, None, packed=True)),
}


def loaded(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], said: dict[str, Any] | None) -> Any:
    write_tiny(folder, config | ({} if said is None else {"quantization_config": said}), tensors)
    return load_drafter(folder)


def same(one: Any, other: Any) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_weights_are_the_plain_ones(kind: str, tmp_path: Path) -> None:
    said, quantiser = KINDS[kind]
    stored, plain = quantised(tiny_tensors(tiny_config()), quantiser)
    drafter = loaded(tmp_path / "quantised", tiny_config(), stored, said)
    same(drafter, loaded(tmp_path / "plain", tiny_config(), plain, None))
    assert drafter.dtype == torch.float32
    assert drafter.provenance.dialect == "zlab"
    assert any("15 quantised weights" in note for note in drafter.provenance.notes)


@pytest.mark.parametrize("kind", ["FP8 by block", "packed 4-bit integers with zero points"])
@pytest.mark.parametrize(("dialect", "files"), [("laguna", laguna()), ("dspark", lfm())])
def test_the_dialect_is_found_behind_the_quantisation(
    kind: str, dialect: str, files: tuple[Any, dict[str, Tensor], Any], tmp_path: Path
) -> None:
    config, tensors, _ = files
    said, quantiser = KINDS[kind]
    stored, plain = quantised(tensors, quantiser)
    drafter = loaded(tmp_path / "quantised", config, stored, said)
    same(drafter, loaded(tmp_path / "plain", config, plain, None))
    assert drafter.provenance.dialect == dialect


def test_columns_in_another_order(tmp_path: Path) -> None:
    """Activation ordering: ``weight_g_idx`` says which group a column is of."""
    stored, plain = quantised(tiny_tensors(tiny_config()), integers(4, 8, packed=True))
    for name in [name for name in stored if name.endswith("weight_shape")]:
        module, columns = name.removesuffix("weight_shape"), int(stored[name][1])
        order = torch.randperm(columns, generator=torch.Generator().manual_seed(columns)) // 8
        stored[f"{module}weight_g_idx"] = order
        scale, weight = stored[f"{module}weight_scale"], plain[f"{module}weight"]
        for row in range(weight.shape[0]):
            for column in range(columns):
                weight[row, column] *= scale[row, order[column]] / scale[row, column // 8]
    same(loaded(tmp_path / "a", tiny_config(), stored, PACKED4), loaded(tmp_path / "b", tiny_config(), plain, None))


def test_plain_weights_under_a_quantisation_config(tmp_path: Path) -> None:
    drafter = loaded(tmp_path, tiny_config(), tiny_tensors(tiny_config()), {"quant_method": "fp8"})
    assert any("all weights in the files are plain floats" in note for note in drafter.provenance.notes)


def test_scales_of_activations_and_caches_are_left_alone(tmp_path: Path) -> None:
    stored, plain = quantised(tiny_tensors(tiny_config()), fp8(None))
    stored |= {f"layers.0.self_attn.{name}": torch.ones(1) for name in ("q_proj.input_scale", "k_scale", "v_scale")}
    drafter = loaded(tmp_path / "quantised", tiny_config(), stored, None)
    same(drafter, loaded(tmp_path / "plain", tiny_config(), plain, None))
    assert "3 scales of activations and caches are not used" in drafter.provenance.notes


def test_dtype_is_the_one_computed_in(tmp_path: Path) -> None:
    stored, _ = quantised(tiny_tensors(tiny_config()), fp8(None))
    assert loaded(tmp_path, tiny_config(torch_dtype="bfloat16"), stored, None).dtype == torch.bfloat16


UP = "layers.0.mlp.up_proj."
REFUSED: dict[str, tuple[dict[str, Any] | None, dict[str, Tensor], str]] = {
    "NVFP4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {f"{UP}weight": torch.zeros(16, 6).byte(), f"{UP}weight_scale": torch.zeros(16, 1).to(torch.float8_e4m3fn)},
        "NVFP4",
    ),
    "NVFP4 by tensors": (None, {f"{UP}weight_global_scale": torch.zeros(1)}, "NVFP4"),
    "GPTQ": ({"quant_method": "gptq"}, {f"{UP}qweight": torch.zeros(2, 2, dtype=torch.int32)}, "GPTQ or AWQ"),
    "AWQ": ({"quant_method": "awq"}, {f"{UP}qzeros": torch.zeros(2, 2, dtype=torch.int32)}, "GPTQ or AWQ"),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes"},
        {f"{UP}weight": torch.zeros(96, 1).byte(), f"{UP}weight.absmax": torch.zeros(3)},
        "bitsandbytes",
    ),
    "MXFP4": (
        {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
        {f"{UP}weight_packed": torch.zeros(16, 6).byte(), f"{UP}weight_scale": torch.zeros(16, 1).byte()},
        "an MX format",
    ),
    "MLX": (None, {f"{UP}weight": torch.zeros(16, 2, dtype=torch.int32), f"{UP}scales": torch.ones(16, 1)}, "MLX"),
    "integers without a scale": (None, {f"{UP}weight": torch.zeros(16, 12).to(torch.int8)}, "without weight_scale"),
    "scales without a size": (
        None,
        {f"{UP}weight": torch.zeros(16, 12).to(torch.float8_e4m3fn), f"{UP}weight_scale": torch.ones(4, 3)},
        "weight_block_size",
    ),
    "scales of another size": (
        FP8,
        {f"{UP}weight": torch.zeros(16, 12).to(torch.float8_e4m3fn), f"{UP}weight_scale_inv": torch.ones(4, 3)},
        "blocks of 5 x 7",
    ),
    "three bits": (
        groups(format="pack-quantized", **GROUP4 | {"num_bits": 3}),
        {f"{UP}weight_packed": torch.zeros(16, 2, dtype=torch.int32), f"{UP}weight_scale": torch.ones(16, 2),
         f"{UP}weight_shape": torch.tensor([16, 12])},
        "3 bits",
    ),
    "an unknown method": (
        {"quant_method": "quark"},
        {f"{UP}weight": torch.zeros(16, 12).to(torch.int8), f"{UP}weight_scale": torch.ones(16, 1)},
        "'quark'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_kinds_are_refused_by_name(case: str, tmp_path: Path) -> None:
    said, changed, named = REFUSED[case]
    tensors = tiny_tensors(tiny_config())
    del tensors[f"{UP}weight"]
    with pytest.raises(UnsupportedCheckpointError, match="quantised weights of a kind") as caught:
        loaded(tmp_path, tiny_config(), tensors | changed, said)
    assert named in str(caught.value)


def test_a_scheme_that_cannot_be_read(tmp_path: Path) -> None:
    stored, _ = quantised(tiny_tensors(tiny_config()), fp8(None))
    with pytest.raises(CheckpointError, match="weight_block_size is 'wide'"):
        loaded(tmp_path, tiny_config(), stored, {"quant_method": "fp8", "weight_block_size": "wide"})
