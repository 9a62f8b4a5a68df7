"""Writing: every dialect that has a home comes back bit for bit; what a layout cannot say is named beforehand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from dflash_hf import DFlashConfig, DFlashDrafter
from dflash_hf.checkpoints.convert import convert
from dflash_hf.checkpoints.layouts import layout
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.errors import CheckpointError
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.target.view import view_target
from tests.checkpoints import slow_target, tiny_dialects
from tests.checkpoints.test_save import SHAPE, assert_same, described
from tests.checkpoints.tiny import write_tiny

ROWS = 40
MARKOV = {"kind": "markov", "rank": 3}
SELECTOR = {"kind": "selector", "rank": 3, "top_k": 4}
CONVOLUTION = {"kernel_size": 2, "group_size": 4}
OWN: dict[str, dict[str, Any]] = {
    "borrowed": {},
    "own embedding": {"embedding": "own"},
    "own both": {"embedding": "own", "draft_vocab_size": ROWS},
}
HANDS: dict[str, dict[str, Any]] = {  # dialect -> what makes a config one of it
    "zlab": {},
    "dflash2": {"head": SELECTOR, "convolution": CONVOLUTION, "layer_windows": [6, 6]},
    "dspark vanilla": {"head": {**MARKOV, "type": "vanilla", "confidence": None}, "first_slot": 0},
    "dspark gated": {"head": {**MARKOV, "type": "gated", "confidence": "hidden"}, "first_slot": 0},
    "dspark rnn": {
        "head": {**MARKOV, "type": "rnn", "confidence": "both"},
        "first_slot": 0,
        "target_layer_ids": [-1, 3],
    },
    "deepspec-dflash": {"first_slot": 0},
    "domino shifted": {
        "head": {"kind": "gru", "hidden": 5, "bottleneck": 3, "first_corrected": 1},
        "first_slot": 0,
        "num_draft_tokens": 3,
    },
    "domino same": {"head": {"kind": "gru", "hidden": 5, "bottleneck": 3, "first_corrected": 1}, "first_slot": 1},
    "jetspec": {"fusion": "adapter", "layer_causal": [True, True], "target_hidden_size": 20},
    "jetspec, not causal": {"fusion": "adapter"},
}
OWNERS = ("dflash2", "dspark", "deepspec", "domino")


def made(dtype: torch.dtype = torch.float32, **changes: Any) -> DFlashDrafter:
    """A random drafter; its tables hold what random numbers hold, its reduced vocabulary no order."""
    torch.manual_seed(11)
    drafter = DFlashDrafter(DFlashConfig(**{**SHAPE, "vocab_size": ROWS} | changes))
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter)
    if drafter.config.reduced_vocabulary:
        drafter.vocabulary.copy_(torch.randperm(ROWS)[: len(drafter.vocabulary)])
    drafter.config.dtype = dtype
    return drafter.to(dtype)


def there_and_back(drafter: DFlashDrafter, to: str) -> DFlashDrafter:
    with TemporaryDirectory() as folder:
        convert(drafter, folder, to=to)
        again = load_drafter(folder)
        return again.to(again.dtype)  # off the files that are about to go


@settings(max_examples=40, deadline=None)
@given(
    hand=st.sampled_from(sorted(HANDS)),
    own=st.sampled_from(sorted(OWN)),
    window=st.sampled_from([None, 6]),
    causal=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    bias=st.booleans(),
)
def test_zlab_layout_round_trip_is_exact(
    hand: str, own: str, window: int | None, causal: bool, dtype: torch.dtype, bias: bool
) -> None:
    owns = OWN[own] if hand.startswith(OWNERS) else {}
    windows = {"layer_windows": [window] * 2, "layer_causal": [causal] * 2, "attention_bias": bias}
    drafter = made(dtype, **{**windows, **owns, **HANDS[hand]})
    again = there_and_back(drafter, "zlab")
    assert again.provenance.dialect == hand.split()[0].rstrip(",")
    assert not again.provenance.defaults
    assert_same(drafter, again)


SPECULATORS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "dspark": {"head": {**MARKOV, "type": "vanilla", "confidence": "both"}, "first_slot": 0},
    "dspark gated": {"head": {**MARKOV, "type": "gated", "confidence": None}},
    "dflash2": {"head": SELECTOR, "convolution": CONVOLUTION},
}


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(SPECULATORS)),
    embedding=st.sampled_from(["own", "target_rows"]),
    head=st.sampled_from([{}, {"draft_vocab_size": ROWS}, {"draft_vocab_size": 9, "reduced_vocabulary": True}]),
    windows=st.sampled_from([[None, None], [6, 6], [6, None]]),
    free=st.booleans(),
    width=st.sampled_from([None, 20]),
    depth=st.sampled_from([None, 6]),
    name=st.sampled_from([None, "owner/target"]),
    taps=st.sampled_from([[1, 3], [-1, 5]]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_speculators_round_trip_is_exact(
    kind: str,
    embedding: str,
    head: dict[str, Any],
    windows: list[int | None],
    free: bool,
    width: int | None,
    depth: int | None,
    name: str | None,
    taps: list[int],
    dtype: torch.dtype,
) -> None:
    drafter = made(
        dtype, **SPECULATORS[kind], **head, embedding=embedding, layer_windows=windows, target_hidden_size=width,
        inherits_logit_scale=False,
        layer_causal=[window is not None and not free for window in windows], window_rule="anchor", last_tap="raw",
        num_target_layers=depth, target_name=name, target_layer_ids=taps,
    )  # fmt: skip
    again = there_and_back(drafter, "speculators")
    assert again.provenance.dialect == f"speculators-{kind.split()[0]}"
    assert not again.provenance.defaults
    assert_same(drafter, again)


def test_speculators_ids_are_offsets_and_taps_count_from_one(tmp_path: Path) -> None:
    drafter = made(embedding="own", draft_vocab_size=3, reduced_vocabulary=True, last_tap="raw")
    drafter.vocabulary.copy_(torch.tensor([7, 2, 30]))
    convert(drafter, tmp_path, to="speculators")
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert tensors["d2t"].tolist() == [7, 1, 28] and tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].nonzero().flatten().tolist() == [2, 7, 30] and tensors["t2d"].shape == (ROWS,)
    assert config["aux_hidden_state_layer_ids"] == [2, 4] and config["draft_vocab_size"] == 3
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    assert not {"hidden_size", "model_type", "dflash_config"} & config.keys()
    assert config["transformer_layer_config"]["hidden_size"] == 12


def test_a_borrowed_embedding_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"no embedding of its own.*multiplier and soft cap.*convert\(\.\.\., target="
    ):
        convert(made(), tmp_path / "out", to="speculators")
    assert not (tmp_path / "out").exists()


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"embedding": "target_rows"}, {"embedding_scale": 3.5}])
def test_with_its_target_a_drafter_gets_an_embedding_and_drafts_the_same(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    target = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=ROWS, hidden_size=12, intermediate_size=16, num_hidden_layers=6, num_attention_heads=2,
            num_key_value_heads=1, head_dim=4, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )
    ).eval()  # fmt: skip
    drafter = made(**changes).eval()
    kept = described(drafter)
    convert(drafter, tmp_path, to="speculators", target=target)
    assert {key: described(drafter)[key] for key in kept} == kept, "the drafter itself stays as it was"
    drafts = []
    for each in (drafter, load_drafter(tmp_path, target=target)):
        engine = DFlashCandidateGenerator(each, view_target(target))
        engine.inject_run(torch.randn(1, 9, 24, generator=torch.Generator().manual_seed(2)), 0)
        drafts.append(engine.propose(torch.tensor([[5]]), 9, 3))
    assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
    assert torch.equal(drafts[0].outputs, drafts[1].outputs)


def test_with_a_target_that_scales_its_logits_a_borrowed_head_is_refused(tmp_path: Path) -> None:
    """speculators' engines call the bare head; a drafter that is to inherit a factor would draft otherwise there."""
    both = slow_target.pair("granite")
    checkpoint = tiny_dialects.zlab()
    write_tiny(tmp_path / "zlab", checkpoint.config, checkpoint.tensors)
    with pytest.raises(CheckpointError, match=r"it has output_multiplier=0\.25"):
        convert(tmp_path / "zlab", tmp_path / "out", to="speculators", target=both.model)


FULL = {"layer_windows": [6, 6]}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "anchor windows": ("zlab", {**FULL, "window_rule": "anchor"}, "windows counted from the anchor"),
    "query windows": ("speculators", {**FULL, "embedding": "own"}, "windows counted from each slot's own place"),
    "own embedding in v1": ("zlab", {"embedding": "own"}, "an embedding of its own"),
    "reduced head": ("zlab", {**HANDS["dflash2"], "draft_vocab_size": 9, "reduced_vocabulary": True}, "some of the"),
    "per-layer mix": ("zlab", {"fusion": "mixed"}, "another fusion of taps"),
    "per-layer mix there": ("speculators", {"fusion": "mixed", "embedding": "own"}, "another fusion of taps"),
    "raw last tap": ("zlab", {"last_tap": "raw", "target_layer_ids": [1, 5]}, "from before the final norm"),
    "normed last tap": (
        "speculators",
        {"embedding": "own", "target_layer_ids": [1, 5]},
        "from after the final norm",
    ),
    "depth unknown": (
        "speculators",
        {"embedding": "own", "num_target_layers": None},
        "num_target_layers is not known",
    ),
    "AngelSpec's Markov": ("zlab", {**HANDS["dspark gated"], "first_slot": 1}, "predict their own place"),
    "a GRU there": ("speculators", {**HANDS["domino same"], "embedding": "own"}, "corrects or selects"),
    "selector alone": ("zlab", {"head": SELECTOR}, "a selector without convolutions"),
    "convolutions alone": ("speculators", {"convolution": CONVOLUTION, "embedding": "own"}, "without a selector"),
    "embedding as a tap": ("zlab", {"target_layer_ids": [-1, 3]}, "a tap of the embedding's output"),
    "soft cap there": ("speculators", {"final_logit_softcapping": 20.0, "embedding": "own"}, "softcapping=20.0"),
    "logits as the target's": ("speculators", {"embedding": "own"}, "whatever multiplier and soft cap"),
    "the target's module": (
        "speculators",
        {"embedding": "target_module", "inherits_logit_scale": False},
        "no embedding of its own",
    ),
    "causal full layers": ("speculators", {"layer_causal": [True, True], "embedding": "own"}, "in-block causality"),
    "a mask's embedding": ("zlab", {"mask_embedding": True}, "an embedding of its own for the mask"),
    "sinks": ("zlab", {"attention_sinks": True}, "attention sinks"),
    "partial rotary": (
        "zlab",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "rotary positions on a part",
    ),
    "a head in transformers": ("host", HANDS["dflash2"], "corrects or selects"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_layout_cannot_say_is_named(case: str) -> None:
    to, changes, message = REFUSED[case]
    with pytest.raises(CheckpointError, match=f"cannot express this drafter: .*{message}"):
        layout(to).describe(DFlashConfig(**{**SHAPE, "vocab_size": ROWS} | changes), torch.float32)


GOLDEN = os.environ.get("DFLASH_GOLDEN")
HOMES = {
    "deepspec_dflash_qwen3": "zlab",
    "jetspec_causal": "zlab",
    "modelopt_dflash_full": "zlab",
    "muse_assistant": "host",
    "specforge_domino_shift": "zlab",
    "speculators_dflash_d2t": "speculators",
    "speculators_dspark_vanilla": "speculators",
    "zlab_dflash2": "zlab",
    "zlab_v1_full_tf4": "zlab",
    "zlab_v1_sliding_default": "zlab",
}


@pytest.mark.skipif(not GOLDEN, reason="DFLASH_GOLDEN is unset; .ci/run sets it")
@pytest.mark.parametrize("name", HOMES)
def test_what_the_authors_saved_comes_back(name: str) -> None:
    """Also under the names they use: no tensor of theirs is lost but copies of the target's."""
    drafter = load_drafter(Path(GOLDEN or "") / name)
    assert_same(drafter, there_and_back(drafter, HOMES[name]))
    theirs = load_file(Path(GOLDEN or "") / name / "model.safetensors")
    ours = layout(HOMES[name]).state(drafter)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
