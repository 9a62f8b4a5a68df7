"""Converting: a drafter in transformers' own layout drafts in transformers' own lane what it drafts in ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_hf import DFlashConfig, DFlashDrafter
from dflash_hf.checkpoints.convert import convert
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.errors import CheckpointError, OptionsError
from tests.checkpoints import slow_target, tiny_dialects
from tests.checkpoints.tiny import tiny_config, tiny_tensors, write_tiny

HOST_LANE = pytest.mark.skipif(
    not hasattr(transformers, "MuseGlimmerAssistantModel"),
    reason=f"transformers {transformers.__version__} has no MuseGlimmerAssistantModel; runs on 5.24 (make test)",
)
SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 6, "use_sliding_window": True}
EXPRESSIBLE: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding, not causal": {**SLIDING, "is_causal": False},
    "one of each": {
        **SLIDING,
        "layer_types": ["sliding_attention", "full_attention"],
        "is_causal": False,
    },
    "YaRN": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def tiny_target() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=12,
        intermediate_size=24,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=40,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


@HOST_LANE
@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_host_lane_drafts_what_ours_drafts(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft of a generation in the host's lane, with its cache, past the window, equals ours from all taps."""
    from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

    config = tiny_config(head_dim=8, **EXPRESSIBLE[case])
    write_tiny(tmp_path / "zlab", config, tiny_tensors(config, seed=3))
    drafter = convert(tmp_path / "zlab", tmp_path / "host", to="host")
    theirs = transformers.MuseGlimmerAssistantModel.from_pretrained(tmp_path / "host", dtype=torch.float32)
    target = tiny_target()
    drafts: list[tuple[torch.Tensor, torch.Tensor]] = []
    real = DFlashTokenCandidateGenerator.get_candidates

    def watched(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        candidates, logits = real(self, input_ids, *args, **kwargs)
        if logits is not None:
            drafts.append((input_ids.clone(), candidates[:, input_ids.shape[1] :].clone()))
        return candidates, logits

    monkeypatch.setattr(DFlashTokenCandidateGenerator, "get_candidates", watched)
    prompt = torch.arange(2, 11)[None]
    text = target.generate(
        prompt, assistant_model=theirs, speculation_type="dflash", max_new_tokens=20, do_sample=False
    )
    assert text.tolist() == target.generate(prompt, max_new_tokens=20, do_sample=False).tolist()
    assert len(drafts) >= 5
    for committed, drafted in drafts:
        assert ours(drafter, target, committed) == drafted.tolist()


@torch.no_grad()
def ours(drafter: DFlashDrafter, target: Qwen3ForCausalLM, committed: torch.Tensor) -> list[list[int]]:
    """The block our network drafts after ``committed``, whose last token is the anchor."""
    config, rows = drafter.config, committed.shape[1] - 1
    states = target(committed[:, :-1], output_hidden_states=True).hidden_states
    taps = torch.cat([states[layer + 1] for layer in config.target_layer_ids], dim=-1)
    block = torch.tensor([[int(committed[0, -1]), *[config.mask_token_id] * (config.block_size - 1)]])
    noise = target.get_input_embeddings()(block)
    hidden = drafter(noise, taps, None, torch.arange(rows + config.block_size)[None]).last_hidden_state
    drafted: list[list[int]] = target.get_output_embeddings()(hidden[:, 1:]).argmax(-1).tolist()
    return drafted


@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_host_layout_and_back(case: str, tmp_path: Path) -> None:
    """There and back is the same drafter, to the key."""
    config = tiny_config(**EXPRESSIBLE[case])
    _, tensors = write_tiny(tmp_path / "zlab", config)
    first = convert(tmp_path / "zlab", tmp_path / "host", to="host")
    written = load_file(tmp_path / "host" / "model.safetensors")
    assert {"encoder.fc.weight", "encoder.output_norm_enc.weight"} <= written.keys()
    assert not {"fc.weight", "hidden_norm.weight"} & written.keys()
    again = load_drafter(tmp_path / "host")
    assert again.provenance.dialect == "muse_assistant" and again.provenance.defaults == ()
    assert again.config.to_dict() | {"_name_or_path": ""} == first.config.to_dict() | {"_name_or_path": ""}
    convert(tmp_path / "host", tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    ("kind", "source", "fits"),
    [
        ("llama", "target", True), ("gemma2", "target", True), ("granite", "target", False),
        ("llama", "target_rows", True), ("gemma2", "target_rows", False), ("granite", "target_rows", True),
        ("granite", "target_module", True),
    ],
)  # fmt: skip
def test_a_target_that_scales_is_looked_at(kind: str, source: str, fits: bool, tmp_path: Path) -> None:
    """transformers' lane calls the embedding module: a factor in it is taken, one around it is not."""
    model = slow_target.pair(kind).model
    nested = {"block_embedding": source, "final_logit_softcapping": None}
    made = tiny_dialects.zlab(nested=nested, target=kind)
    write_tiny(tmp_path / "zlab", made.config, made.tensors)
    if not fits:
        with pytest.raises(CheckpointError, match=f"{type(model).__name__}'s embedding module gives; this drafter"):
            convert(tmp_path / "zlab", tmp_path / "host", to="host", target=model)
        assert not (tmp_path / "host").exists()
    first = convert(tmp_path / "zlab", tmp_path / "host", to="host", target=model if fits else None, dtype="float64")
    back = load_drafter(tmp_path / "host", dtype="float64")
    assert back.config.embedding == source and back.config.inherits_logit_scale
    logits = []
    for drafter in (first, back):  # with this package the files draft the same, whatever scales
        both = slow_target.pair(kind)
        taps = slow_target.taps_of(drafter, both)
        logits.append(slow_target.drafts(drafter, both, taps, [9], cached=True)[0].logits)
    assert torch.equal(*logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (SLIDING, "causal layers"),
        ({"is_causal": True}, "causal layers"),
        ({"attention_bias": True}, "attention biases"),
        ({**SLIDING, "sliding_window": 1, "is_causal": False}, "a window of 1"),
        ({"output_multiplier": 0.5}, "output_multiplier=0.5"),
        ({"output_multiplier": 1.0}, "output_multiplier=1.0"),
        ({"final_logit_softcapping": 20.0}, "final_logit_softcapping=20.0"),
        ({"input_embedding_scale": 2.0}, "embedding_scale=2.0"),
    ],
)
def test_what_the_host_cannot_run_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_tiny(tmp_path / "zlab", tiny_config(**changes))
    with pytest.raises(CheckpointError, match=f"cannot express this drafter: .*{message}"):
        convert(tmp_path / "zlab", tmp_path / "host", to="host")
    assert not (tmp_path / "host").exists()


def test_windows_of_two_lengths_are_named(tmp_path: Path) -> None:
    shape = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 4}
    drafter = DFlashDrafter(DFlashConfig(**shape, layer_windows=[5, 6], num_attention_heads=2, num_key_value_heads=1))
    with pytest.raises(CheckpointError, match=r"windows of several lengths \(5, 6\)"):
        convert(drafter, tmp_path / "host", to="host")


def test_the_target_stays_named(tmp_path: Path) -> None:
    write_tiny(tmp_path / "zlab")
    (tmp_path / "zlab" / "README.md").write_text("---\nbase_model: owner/target\n---\n")
    convert(tmp_path / "zlab", tmp_path / "host", to="host")
    assert load_drafter(tmp_path / "host").config.target_name == "owner/target"
    assert 'speculation_type="dflash"' in (tmp_path / "host" / "README.md").read_text()
    assert json.loads((tmp_path / "host" / "config.json").read_text())["num_target_layers"] == 6


def test_impossible_conversions_are_refused(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    with pytest.raises(OptionsError, match="to='gguf' is no layout; known: zlab, host, speculators"):
        convert(tmp_path, tmp_path / "out", to="gguf")
    with pytest.raises(OptionsError, match="destination is the source"):
        convert(tmp_path, tmp_path)
    with pytest.raises(OptionsError, match="already in memory"):
        convert(load_drafter(tmp_path), tmp_path / "out", dtype="float32")
