"""Detection goes by tensors and keys, whatever architecture is declared; what is not read is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dflash_hf.checkpoints.dialects import READERS, detect, reader
from dflash_hf.checkpoints.files import TensorInfo
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.checkpoints.refused import REFUSED
from dflash_hf.errors import UnsupportedCheckpointError
from tests.checkpoints.tiny import MASK, tiny_config, tiny_tensors, write_tiny

HEAD = {"block_size": 4, "mask_token_id": MASK, "target_layer_ids": [1, 3]}
# name: (dialect, changes of config, nested keys, tensors beside or (with "only") instead of the plain ones)
IMPOSTORS: dict[str, tuple[str, dict[str, Any], dict[str, Any], list[str]]] = {
    "speculators dflash, z-lab's architecture": (
        "speculators-dflash",
        {"speculators_model_type": "dflash"},
        {},
        ["embed_tokens.weight", "lm_head.weight", "d2t", "t2d"],
    ),
    "speculators dflash without extra tensors": ("speculators-dflash", {"speculators_model_type": "dflash"}, {}, []),
    "speculators dspark": (
        "speculators-dspark",
        {"speculators_model_type": "dspark"},
        {},
        ["markov_head.markov_w1.weight"],
    ),
    "speculators dflash2": ("speculators-dflash2", {"speculators_model_type": "dflash2"}, {}, []),
    "speculators eagle3": ("speculators-other", {"speculators_model_type": "eagle3"}, {}, []),
    "DFlash 2 by tensors alone": ("dflash2", {}, {}, ["candidate_selector.predecessor_codebook"]),
    "DFlash 2 by convolutions alone": ("dflash2", {}, {}, ["layers.0.attention_conv.base_kernel"]),
    "DFlash 2 by config alone": ("dflash2", {}, {"selector_rank": 256}, []),
    "DFlash 2 by its projector": ("dflash2", {}, {"projector_type": "dflash2"}, []),
    "DSpark, flat tensors of Model-Optimizer": ("dspark", {}, {"projector_type": "dspark"}, ["markov_w1.weight"]),
    "DSpark by tensors alone": ("dspark", {}, {}, ["logit_head.markov_head.markov_w2.weight"]),
    "DSpark of SpecForge": ("dspark", {"architectures": ["DSparkDraftModel"]}, {}, ["markov_head.markov_w1.weight"]),
    "DSpark of SpecForge, its own model_type": (
        "dspark",
        {"architectures": ["DSparkDraftModel"], "model_type": "dspark"},
        {},
        ["markov_head.markov_w1.weight"],
    ),
    "DSpark of AngelSpec": (
        "angelspec-dspark",
        {"architectures": ["DSparkDraftModel"], "model_type": "dspark"},
        {},
        ["context_proj.weight", "markov_head.markov_w1.weight"],
    ),
    "DeepSpec 'dflash'": (
        "deepspec-dflash",
        {"architectures": ["Qwen3DSparkModel"], "markov_rank": 0},
        {},
        ["embed_tokens.weight", "lm_head.weight"],
    ),
    "Domino of SpecForge": ("domino", {}, {"projector_type": "domino"}, ["prefix_gru.weight_ih_l0"]),
    "Domino by tensors alone": ("domino", {}, {}, ["logit_head.embed_proj.0.weight"]),
    "DFlare under z-lab's name": ("dflare", {"model_arch": "dflare"}, {}, ["layer_fusion_weights"]),
    "DFlare by tensors alone": ("dflare", {}, {}, ["layers.0.self_attn.k_proj_target.weight"]),
    "DFly": ("dfly", {"architectures": ["Qwen3DFlyModel"]}, {}, ["hidden_correction.gate_proj.weight"]),
    "gated": ("gated-dflash", {"fusion_type": "gated_sum"}, {}, ["layer_gate", "candidate_norms.0.weight"]),
    "JetSpec": ("jetspec", {}, {"causal_head": True}, []),
    "JetSpec with an adapter": ("jetspec", {}, {}, ["hidden_dim_adapter.proj.weight"]),
    "Laguna": ("laguna", {"architectures": ["DFlashLagunaForCausalLM"], "model_type": "laguna"}, {}, []),
    "Laguna by tensors alone": ("laguna", {}, {}, ["aux_hidden_norms.0.weight"]),
    "MiMo": ("attention-sinks", {}, {"use_swa": True, "attention_sink_bias": True}, []),
    "sinks by tensors alone": ("attention-sinks", {}, {}, ["layers.0.self_attn.attention_sink_bias"]),
    "MLA": ("attention-hybrid", {}, {"attention_mode": "mla"}, ["layers.0.self_attn.kv_a_proj_with_mqa.weight"]),
    "KDA": ("attention-hybrid", {}, {"attention_modes": ["kda", "gqa"]}, ["layers.0.self_attn.A_log"]),
    "labels shifted without a head": ("shifted-head", {}, {"shift_label": True}, []),
    "quantised by tensors": ("quantised", {}, {}, ["layers.0.mlp.up_proj.weight_scale"]),
    "DSpark over Kimi's layers, by name": ("dspark-backbone", {"architectures": ["KimiK3DSparkModel"]}, {}, []),
    "DSpark over GLM's layers, by name": ("dspark-backbone", {"architectures": ["Glm5_2DSparkModel"]}, {}, []),
    "DSpark over MiniMax's layers, by name": ("dspark-backbone", {"architectures": ["MiniMaxM3DSparkModel"]}, {}, []),
    "DSpark over MLA, by tensors": (
        "dspark-backbone",
        {"architectures": ["DSparkDraftModel"]},
        {},
        ["markov_head.markov_w1.weight", "layers.0.self_attn.kv_a_proj_with_mqa.weight"],
    ),
    "DSpark inside DeepSeek V4": ("dspark-fused", {"dspark_target_layer_ids": [1, 3]}, {}, []),
    "DSpark with sinks": (
        "dspark-sinks",
        {},
        {"projector_type": "dspark"},
        ["markov_w1.weight", "layers.0.self_attn.attention_sink_bias"],
    ),
    "DeepSpec for Gemma 4": ("gemma4-dspark", {"architectures": ["Gemma4DSparkModel"], "markov_rank": 0}, {}, []),
    "DSpark over Gemma 4's layers, by tensors": (
        "gemma4-dspark",
        {},
        {},
        ["markov_head.markov_w1.weight", "layers.0.pre_feedforward_layernorm.weight"],
    ),
    "AngelSpec plain": ("angelspec-dflash", {"model_type": "dflash"}, {}, ["context_proj.weight"]),
    "TreeFlash: a Markov head and a hidden correction": (
        "treeflash",
        {"architectures": ["DSparkDraftModel"], "model_type": "dspark"},
        {},
        ["context_proj.weight", "markov_head.markov_w1.weight", "hidden_correction.gate_proj.weight"],
    ),
    "TreeFlash over DFlare": (
        "treeflash",
        {"model_type": "dspark", "model_arch": "dflare"},
        {},
        ["layer_fusion_weights", "markov_head.markov_w1.weight"],
    ),
    "strengths by place": (
        "treeflash",
        {"model_type": "dspark"},
        {},
        ["markov_head.markov_w1.weight", "markov_head.pos_alpha.alpha_logit"],
    ),
    "strengths by place, by a key": (
        "treeflash",
        {"hidden_correction_pos_adaptive": True},
        {},
        ["layer_fusion_weights"],
    ),
    "DFlash 2 over MLA": (
        "attention-hybrid",
        {"architectures": ["DFlash2DraftModel"]},
        {"attention_mode": "mla"},
        ["candidate_selector.predecessor_codebook"],
    ),
    "attention as usual, by name": ("zlab", {}, {"attention_mode": "gqa"}, []),
    "own embedding": ("own-embedding", {}, {}, ["embed_tokens.weight"]),
    "EAGLE-3": ("eagle", {"architectures": ["LlamaForCausalLMEagle3"]}, {}, []),
    "EAGLE-3 by tensors alone": ("eagle", {}, {}, ["midlayer.hidden_norm.weight"]),
    "P-EAGLE": ("eagle", {}, {}, ["mask_hidden"]),
    "Medusa": ("eagle", {"medusa_num_heads": 4}, {}, []),
    "MTP": ("eagle", {}, {}, ["layers.0.eh_proj.weight", "layers.0.enorm.weight"]),
}


@pytest.mark.parametrize("case", IMPOSTORS)
def test_a_dialect_is_known_by_its_tensors_and_keys(case: str, tmp_path: Path) -> None:
    dialect, changes, nested, extra = IMPOSTORS[case]
    config = tiny_config(**changes) | {"dflash_config": HEAD | nested}
    tensors = tiny_tensors(config) | {name: torch.zeros(2) for name in extra}
    table = {name: TensorInfo(tuple(tensor.shape), "F32", "f") for name, tensor in tensors.items()}
    assert detect(config, table) == dialect
    if dialect in READERS:
        return
    write_tiny(tmp_path / "any-name-DFlash", config, tensors)
    with pytest.raises(UnsupportedCheckpointError) as caught:
        load_drafter(tmp_path / "any-name-DFlash")
    assert REFUSED[dialect] in str(caught.value) and f"'{dialect}'" in str(caught.value)


def test_float8_weights_are_quantised(tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config())
    tensors["layers.1.mlp.up_proj.weight"] = tensors["layers.1.mlp.up_proj.weight"].to(torch.float8_e4m3fn)
    write_tiny(tmp_path, tensors=tensors)
    with pytest.raises(UnsupportedCheckpointError, match="quantised"):
        load_drafter(tmp_path)


def test_repository_name_decides_nothing(tmp_path: Path) -> None:
    """A folder called after another family is read for what it holds."""
    write_tiny(tmp_path / "Qwen3-8B-speculator.eagle3")
    assert load_drafter(tmp_path / "Qwen3-8B-speculator.eagle3").provenance.dialect == "zlab"


def test_architecture_alone_decides_nothing(tmp_path: Path) -> None:
    """An unknown architecture with plain tensors is plain; z-lab's name on a target's tensors is not."""
    write_tiny(tmp_path / "renamed", tiny_config(architectures=["MyDraftModel"]))
    assert load_drafter(tmp_path / "renamed").provenance.dialect == "zlab"
    folder = tmp_path / "target"
    write_tiny(folder, tiny_config(architectures=["Qwen3ForCausalLM"]))
    save_file({"model.embed_tokens.weight": torch.zeros(4, 4)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedCheckpointError, match="Pass the drafter, not the target"):
        load_drafter(folder)


def test_every_dialect_has_one_place() -> None:
    assert not READERS.keys() & REFUSED.keys()
    for name in READERS:
        assert callable(reader(name))
    assert REFUSED.keys() <= {case[0] for case in IMPOSTORS.values()} <= REFUSED.keys() | READERS.keys()


def test_muse_is_known_by_its_tensors_alone() -> None:
    table = {"encoder.output_norm_enc.weight": TensorInfo((4,), "F32", "f")}
    assert detect({"architectures": ["SomethingElse"]}, table) == "muse_assistant"
