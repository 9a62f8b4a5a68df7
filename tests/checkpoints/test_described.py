"""Dialects known from descriptions: the survey's tables through reader and network, against loops in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

import dflash_hf
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.target.view import view_target
from tests.checkpoints.described_files import FULL, SLIDING, Files, gated, gemma4, laguna, lfm, mimo, own_parts
from tests.checkpoints.slow_described import Meaning, Slow
from tests.checkpoints.tiny import BLOCK, TAPS, VOCAB, WIDTH, write_tiny

NOTE = "from descriptions only"
ROUNDS = [[7, 1, 3], [2, 5, 1, 4], [12]]


def with_meaning(files: Files, **changes: Any) -> Files:
    config, tensors, means = files
    return config, tensors, replace(means, **changes)


def with_config(files: Files, **changes: Any) -> Files:
    config, tensors, means = files
    return {k: v for k, v in (config | changes).items() if v is not None}, tensors, means


CASES: dict[str, tuple[str, Files]] = {  # dialect, files
    "Laguna": ("laguna", laguna()),
    "Laguna, a gate per channel": ("laguna", laguna("per-element")),
    "Laguna without gates": ("laguna", laguna("disabled")),
    "Laguna, windows of several lengths": (
        "laguna",
        with_meaning(with_config(laguna(), sliding_windows=[3, 6]), windows=[3, 6]),
    ),
    "Laguna, full layers": (
        "laguna",
        with_meaning(with_config(laguna(), layer_types=[FULL, FULL]), windows=[None, None]),
    ),
    "Laguna, both kinds of layers in the same positions": (
        "laguna",
        with_meaning(with_config(laguna(), layer_types=[FULL, SLIDING]), windows=[None, 5]),
    ),
    "Laguna, rotary per layer type": (
        "laguna",
        with_meaning(
            with_config(
                laguna(),
                rope_parameters={
                    FULL: {"rope_theta": 1e4, "rope_type": "default"},
                    SLIDING: {"rope_theta": 2e5, "rope_type": "default", "partial_rotary_factor": 0.5},
                },
            ),
            theta=2e5,
            rotated=4,
        ),
    ),
    "Laguna, rotary of sliding layers apart": (
        "laguna",
        with_meaning(
            with_config(
                laguna(), swa_rope_parameters={"rope_theta": 3e4, "rope_type": "default"}, partial_rotary_factor=0.5
            ),
            theta=3e4,
            rotated=4,
        ),
    ),
    "MiMo": ("attention-sinks", mimo()),
    "MiMo, a window shorter than the block": (
        "attention-sinks",
        with_meaning(mimo(swa_window_size=2), windows=[2, 2]),
    ),
    "MiMo, one rotary base": ("attention-sinks", with_meaning(mimo(backbone_rotary_base=None), context_theta=None)),
    "sinks in causal blocks": ("attention-sinks", with_meaning(mimo(causal=True), causal=True)),
    "LFM2.5": ("dspark", lfm()),
    "LFM2.5 by its architecture": (
        "dspark",
        lfm(rope_is_neox_style=None, architectures=["Lfm2DSparkModel"]),
    ),
    "gated sum": ("gated-dflash", gated()),
    "gated sum, cooler": ("gated-dflash", gated(0.5)),
    "own embedding": ("own-embedding", own_parts(head=None)),
    "own embedding and head": ("own-embedding", own_parts(head=VOCAB)),
    "own reduced head": ("own-embedding", own_parts(head=11, embedding=False)),
    "own embedding and reduced head": ("own-embedding", own_parts(head=11)),
    "Gemma 4, keys as values": ("gemma4-dspark", gemma4()),
    "Gemma 4, values of their own": ("gemma4-dspark", gemma4(same=False, part=0.25)),
    "Gemma 4, no Markov head": ("gemma4-dspark", gemma4(rank=0)),
}


@pytest.fixture(scope="module")
def target() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=6, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, initializer_range=0.4,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def drafts(drafter: DFlashDrafter, target: Any, rounds: list[int], taps: Tensor) -> list[tuple[Any, int, int]]:
    """What is drafted after each round's injection, with the anchor and its position; the context carried along."""
    engine, out, held = DFlashCandidateGenerator(drafter, view_target(target)), [], 0
    for number, rows in enumerate(rounds):
        engine.inject_run(taps[None, held : held + rows], held)
        held += rows
        anchor = (5 * number + 1) % VOCAB
        out.append((engine.propose(torch.tensor([[anchor]]), held, engine.most), anchor, held))
    return out


def check(folder: Path, target: Any, files: Files, rounds: list[int], mask: tuple[int, Tensor] | None = None) -> None:
    config, tensors, means = files
    write_tiny(folder, config, tensors)
    drafter = load_drafter(folder)
    taps = torch.randn(sum(rounds), TAPS * WIDTH, generator=torch.Generator().manual_seed(17))
    embed = tensors.get("embed_tokens.weight", target.get_input_embeddings().weight.detach())
    head = tensors.get("lm_head.weight", target.lm_head.weight.detach())
    slow = Slow(tensors, means)
    for draft, anchor, held in drafts(drafter, target, rounds, taps):
        ids = [anchor] + [drafter.config.mask_token_id] * (BLOCK - 1)
        logits, chosen = slow.logits(taps[:held], ids, held, embed, head, mask)
        torch.testing.assert_close(draft.logits[0].double(), torch.stack(logits), rtol=0, atol=1e-5)
        assert draft.tokens[0].tolist() == chosen


@pytest.mark.parametrize("rounds", ROUNDS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_drafts_equal_the_loops(case: str, rounds: list[int], target: Any, tmp_path: Path) -> None:
    check(tmp_path, target, CASES[case][1], rounds)


@pytest.mark.parametrize("case", CASES)
def test_the_dialect_and_its_mark(case: str, tmp_path: Path) -> None:
    dialect, (config, tensors, _) = CASES[case]
    write_tiny(tmp_path, config, tensors)
    drafter = load_drafter(tmp_path)
    provenance = drafter.provenance
    assert provenance.dialect == dialect
    assert drafter.config.last_tap == ("raw" if dialect in ("laguna", "attention-sinks") else "normed")
    described = dialect in ("laguna", "attention-sinks", "gemma4-dspark") or case.startswith("LFM")
    assert any(note.startswith(NOTE) for note in provenance.notes) == described


@pytest.mark.parametrize("case", CASES)
def test_generate_gives_the_targets_text(case: str, target: Any, tmp_path: Path) -> None:
    config, tensors, _ = CASES[case][1]
    write_tiny(tmp_path, config, tensors)
    prompt = torch.arange(3, 12)[None]
    options = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    plain = target.generate(prompt, **options)
    dflash_hf.attach(target)
    try:
        drafted = target.generate(prompt, assistant=load_drafter(tmp_path), **options)
    finally:
        dflash_hf.detach(target)
    assert drafted.tolist() == plain.tolist()
    trace = dflash_hf.last_trace()
    assert trace is not None and len(trace.rounds) > 1


WRONG: dict[str, tuple[Files, dict[str, Any]]] = {  # each a reading that a bug would give
    "Laguna bidirectional": (laguna(), {"causal": False}),
    "Laguna's context not normed": (laguna(), {"context_norm": False}),
    "Laguna's taps not normed": (laguna(), {"taps": "concat"}),
    "Laguna's window off by one": (laguna(), {"windows": [6, 6]}),
    "MiMo's values unscaled": (mimo(), {"value_scale": 1.0}),
    "MiMo's whole head rotated": (mimo(), {"rotated": None}),
    "MiMo's context in the block's base": (mimo(), {"context_theta": None}),
    "MiMo causal": (mimo(), {"causal": True}),
    "LFM2.5 in halves": (lfm(), {"interleaved": False}),
    "LFM2.5 same-position": (lfm(), {"first_slot": 1}),
    "the gate's temperature dropped": (gated(0.5), {"temperature": 1.0}),
    "Gemma 4's embedding unscaled": (gemma4(), {"embedding_scale": 1.0}),
    "Gemma 4's soft cap dropped": (gemma4(), {"softcap": None}),
    "Gemma 4's whole head rotated": (gemma4(), {"pairs": 4}),
    "Gemma 4 as Qwen3's layer": (gemma4(), {"gemma": False}),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_loops_tell_wrong_readings_apart(case: str, target: Any, tmp_path: Path) -> None:
    files, wrong = WRONG[case]
    with pytest.raises(AssertionError):
        check(tmp_path, target, with_meaning(files, **wrong), [9])


@pytest.mark.parametrize("rounds", ROUNDS, ids=str)
def test_a_mask_embedding_of_its_own(rounds: list[int], target: Any, tmp_path: Path) -> None:
    row = torch.randn(WIDTH, generator=torch.Generator().manual_seed(23))
    files = mimo()
    mask = files[0]["dflash_config"]["mask_token_id"]
    torch.save({"embedding": row, "mask_token_id": mask}, tmp_path / "mask_embedding.pt")
    check(tmp_path, target, files, rounds, (mask, row))
    assert "mask_embedding.pt" in load_drafter(tmp_path).provenance.files
    with pytest.raises(AssertionError):
        check(tmp_path, target, files, rounds)


def test_meaning_is_complete() -> None:
    """A case that means what the defaults mean would test nothing of its dialect."""
    assert all(files[2] != Meaning(files[2].windows) for name, (_, files) in CASES.items() if "own" not in name)
