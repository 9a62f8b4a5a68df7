"""The survey's bug list (section 6.6), number by number: each bug is a reading of the same files that drafts otherwise.

A test holds the product to the right reading and away from the wrong one; each fails when its bug is put in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.errors import CheckpointError, IncompatiblePairError
from dflash_hf.target.pairing import check_pair
from tests.checkpoints.cases import CASES
from tests.checkpoints.reference import dialects
from tests.checkpoints.reference.drafter import SlowDrafter
from tests.checkpoints.slow_target import drafts, load, pair, taps_of
from tests.checkpoints.test_dialect_maths import assert_same, check
from tests.checkpoints.tiny import BLOCK, write_tiny
from tests.checkpoints.tiny_dialects import (
    FULL,
    SLIDING,
    VOCAB,
    WINDOW,
    Checkpoint,
    dflash2,
    speculators,
    zlab,
)

ANCHOR = 11  # past every window
Bug = Callable[[SlowDrafter], SlowDrafter]


def hold(checkpoint: Checkpoint, folder: Path, *bugs: Bug) -> None:
    """The product drafts as the right reading says, and not as one with any of ``bugs`` would."""
    both, drafter = pair(checkpoint.target), load(checkpoint, folder)
    right = getattr(dialects, checkpoint.reading)(checkpoint.config, checkpoint.tensors)
    draft = drafts(drafter, both, taps_of(drafter, both), [ANCHOR - 6, ANCHOR], cached=True)[-1]
    assert_same(draft, *right.draft(both.slow, both.run, ANCHOR), "right")
    for bug in bugs:
        rows, _ids = bug(right).draft(both.slow, both.run, ANCHOR)
        mine, theirs = draft.logits[0].flatten().tolist(), [value for row in rows for value in row.values()]
        same_shape = len(mine) == len(theirs)
        assert not same_shape or max(abs(a - b) for a, b in zip(mine, theirs, strict=True)) > 1e-2, "it cannot be told"


def rules(**changes: Any) -> Bug:
    return lambda drafter: replace(drafter, rules=replace(drafter.rules, **changes))


@pytest.mark.parametrize("case", ["zlab", "speculators dflash", "deepspec dflash", "angelspec dflash"])
def test_bug_1_layer_ids_off_by_one(case: str, tmp_path: Path) -> None:
    higher: Bug = lambda d: replace(d, states=[state + 1 for state in d.states])  # noqa: E731
    lower: Bug = lambda d: replace(d, states=[max(state - 1, 0) for state in d.states])  # noqa: E731
    hold(CASES[case](), tmp_path, higher, lower)


@pytest.mark.parametrize(
    "theta",
    [{"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"rope_parameters": None, "rope_theta": 5e5}],
)
def test_bug_2_rope_theta_in_either_place(theta: dict[str, Any], tmp_path: Path) -> None:
    hold(zlab(**theta), tmp_path, rules(theta=1e4), rules(theta=1e6))


def test_bug_2_rope_theta_missing_is_no_guess(tmp_path: Path) -> None:
    write_tiny(tmp_path, *_files(zlab(rope_parameters=None)))
    with pytest.raises(CheckpointError, match="neither rope_parameters.rope_theta nor rope_theta"):
        load_drafter(tmp_path)


def test_bug_3_and_4_a_targets_interleaved_and_partial_rotary_stay_its_own(tmp_path: Path) -> None:
    """GLM-4 rotates neighbouring pairs of half of each head."""
    assert pair("glm4").model.config.rope_parameters["partial_rotary_factor"] == 0.5
    check(zlab(target="glm4"), tmp_path)


def test_bug_4_partial_rotary_factor_leaked_into_the_drafters_config(tmp_path: Path) -> None:
    plain = zlab()
    leaked = plain.config["rope_parameters"] | {"partial_rotary_factor": 0.25}
    config = plain.config | {"rope_parameters": leaked, "partial_rotary_factor": 0.25}
    check(replace(plain, config=config), tmp_path)


def test_bug_5_sliding_layers_treated_as_bidirectional(tmp_path: Path) -> None:
    hold(
        zlab(layer_types=[SLIDING, FULL], **WINDOW), tmp_path, rules(causal=[False, False]), rules(causal=[True, True])
    )


@pytest.mark.parametrize("case", ["dflash2", "muse", "speculators dflash2", "modelopt use_swa"])
def test_bug_5_bidirectional_sliding_layers_treated_as_causal(case: str, tmp_path: Path) -> None:
    hold(CASES[case](), tmp_path, rules(causal=[True, True]))


@pytest.mark.parametrize("case", sorted({"zlab", "dflash2", "deepspec dflash", "speculators dspark", "angelspec dfly"}))
def test_bug_6_anchor_embedded_as_mask(case: str, tmp_path: Path) -> None:
    class Masked(SlowDrafter):
        def embed(self, target: Any, token: int) -> Any:
            return super().embed(target, self.mask)

    hold(CASES[case](), tmp_path, lambda d: Masked(**vars(d)))


@pytest.mark.parametrize(
    "case",
    ["deepspec dflash", "deepspec vanilla", "dspark specforge", "domino shifted 1", "speculators dflash from anchor"],
)
def test_bug_7_shifted_head_read_as_same_position(case: str, tmp_path: Path) -> None:
    hold(CASES[case](), tmp_path, lambda d: replace(d, first=1, drafts=d.block - 1))


@pytest.mark.parametrize("case", ["zlab", "angelspec dspark", "domino same place 1", "speculators dspark rnn"])
def test_bug_7_same_position_head_read_as_shifted(case: str, tmp_path: Path) -> None:
    hold(CASES[case](), tmp_path, lambda d: replace(d, first=0, drafts=d.block - 1))


def test_bug_8_nested_block_size_ignored(tmp_path: Path) -> None:
    checkpoint = zlab(block_size=16)
    assert checkpoint.config["dflash_config"]["block_size"] == BLOCK
    hold(checkpoint, tmp_path, lambda d: replace(d, block=16))


def test_bug_9_last_tap_read_after_the_final_norm(tmp_path: Path) -> None:
    hold(CASES["speculators dflash raw last"](), tmp_path, lambda d: replace(d, raw_last=False))


def test_bug_9_a_host_trained_last_tap_read_before_the_final_norm(tmp_path: Path) -> None:
    hold(CASES["zlab last layer"](), tmp_path, lambda d: replace(d, raw_last=True))


@pytest.mark.parametrize("target", ["gemma2", "granite"])
def test_bug_10_scaled_embedding_taken_unscaled(target: str, tmp_path: Path) -> None:
    hold(zlab(target=target), tmp_path, lambda d: replace(d, embedding="rows"))


@pytest.mark.parametrize("own", [True, False])
def test_bug_10_a_speculators_embedding_scaled(own: bool, tmp_path: Path) -> None:
    checkpoint = replace(speculators("dflash", own=own), target="gemma2")
    hold(checkpoint, tmp_path, lambda d: replace(d, embedding_scale=32**0.5, embedding="rows"))


@pytest.mark.parametrize("case", ["zlab on muse", "dflash2 on muse", "muse on muse"])
def test_bug_10_rows_normed_inside_the_embedding(case: str, tmp_path: Path) -> None:
    class Normed(SlowDrafter):
        def embed(self, target: Any, token: int) -> Any:
            row = super().embed(target, token)
            return row / ((row * row).mean() + 1e-6) ** 0.5

    hold(CASES[case](), tmp_path, lambda d: Normed(**vars(d)))


@pytest.mark.parametrize(
    "case",
    ["angelspec dflare", "angelslim dflare", "angelspec dfly", "jetspec", "jetspec adapter", "domino shifted 1"]
    + ["dspark specforge", "dspark modelopt", "dflash2", "deepspec vanilla", "angelspec dspark"],
)
def test_bug_11_a_special_file_that_calls_itself_plain_dflash(case: str, tmp_path: Path) -> None:
    made = CASES[case]()
    check(replace(made, config=made.config | {"architectures": ["DFlashDraftModel"]}), tmp_path)


@pytest.mark.parametrize(
    ("mask", "kind", "message"),
    [
        (None, CheckpointError, "no mask_token_id"),
        (-1, CheckpointError, "mask_token_id is -1"),
        (VOCAB, IncompatiblePairError, "mask token is id 96"),
    ],
)
def test_bug_12_mask_id_missing_negative_or_past_the_embedding(
    mask: Any, kind: Any, message: str, tmp_path: Path
) -> None:
    checkpoint = zlab(nested={"mask_token_id": mask}, vocab_size=None)
    write_tiny(tmp_path, checkpoint.config, checkpoint.tensors)
    with pytest.raises(kind, match=message):
        check_pair(pair("llama").model, load_drafter(tmp_path))


@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_bug_13_codebooks_under_either_name(suffix: str, tmp_path: Path) -> None:
    def zeroed(drafter: SlowDrafter) -> SlowDrafter:
        tensors = {name: each * ("codebook" not in name) for name, each in made.tensors.items()}
        return dialects.dflash2(made.config, tensors)

    made = dflash2()
    hold(made, tmp_path, zeroed)
    named = {name + suffix if name.endswith("codebook") else name: each for name, each in made.tensors.items()}
    write_tiny(tmp_path / "named", made.config, named)
    both, drafter = pair("llama"), load_drafter(tmp_path / "named", dtype=torch.float64)
    draft = drafts(drafter, both, taps_of(drafter, both), [ANCHOR], cached=True)[0]
    right = dialects.dflash2(made.config, made.tensors)
    assert_same(draft, *right.draft(both.slow, both.run, ANCHOR), "named")


@pytest.mark.parametrize("case", ["speculators dflash", "speculators dspark", "speculators dspark rnn"])
def test_bug_14_d2t_used_as_absolute_ids(case: str, tmp_path: Path) -> None:
    """Ids, not logits, tell: the rows are the same under other names."""
    made = CASES[case]()
    check(made, tmp_path)
    drafter = load(made, tmp_path)
    offsets = made.tensors["d2t"]
    assert drafter.vocabulary.tolist() == [row + int(offset) for row, offset in enumerate(offsets)]
    assert drafter.vocabulary.tolist() != offsets.tolist()


def _files(checkpoint: Checkpoint) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    return checkpoint.config, checkpoint.tensors
