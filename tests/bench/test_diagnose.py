"""The probe is the decoding run, and a planted fault is named.

A tiny drafter learns its target's own answer by heart, and is then described wrongly.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

import dflash_hf
from dflash_hf.bench import diagnose as diagnose_module
from dflash_hf.bench.alternatives import alternatives, windows_past
from dflash_hf.bench.diagnose import Diagnosis, diagnose
from dflash_hf.bench.probe import ProbeText, accepted_at, evaluation_of, probe_text
from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.drafter.redescribed import redescribed
from dflash_hf.target.view import view_target
from dflash_hf.training.blocks import draft_hidden
from dflash_hf.training.documents import Document
from dflash_hf.training.evaluate import Evaluation
from dflash_hf.training.features.features import Features
from dflash_hf.training.packs import make_pack
from tests.tiny import prompt, tiny_target

BLOCK, MASK, TOKENS = 5, 3, 64


def text_of(family: str) -> ProbeText:
    target = tiny_target(family)
    ids = prompt(9)
    return probe_text(view_target(target), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, TOKENS)


def trained(text: ProbeText, steps: int = 120, **changes: Any) -> DFlashDrafter:
    """A drafter that knows this one answer by heart, in the conventions of its config."""
    torch.manual_seed(7)
    width = text.view.hidden_size
    shape: dict[str, Any] = {
        "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "target_layer_ids": [1, 2], "block_size": BLOCK,
        "mask_token_id": MASK, "vocab_size": text.view.vocab_rows, "attn_implementation": "sdpa",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }  # fmt: skip
    drafter = DFlashDrafter(DFlashConfig(**shape | changes))
    config = drafter.config
    document = Document("own", text.ids[0], text.prompt_length)
    taps = text.taps(config.target_layer_ids, config.last_tap)[0, :-1].clone()
    pack = make_pack(
        [document],
        [Features(taps, None)],
        [torch.tensor(list(text.anchors))],
        slots=BLOCK,
        mask_token_id=MASK,
        first_slot=config.first_slot,
    )
    optimizer = torch.optim.Adam(drafter.parameters(), lr=4e-3)
    first, count = config.first_slot, BLOCK - config.first_slot
    for _ in range(steps):
        hidden = draft_hidden(drafter, text.view, pack, form="dense")[:, first : first + count]
        logits = text.view.project(hidden)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), pack.labels[:, :count].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return drafter.eval()


_LEARNED: dict[str, DFlashDrafter] = {}


def learned(text: ProbeText, changes: dict[str, Any]) -> DFlashDrafter:
    """The same drafter for all faults of the same conventions."""
    if str(changes) not in _LEARNED:
        _LEARNED[str(changes)] = trained(text, **changes)
    return _LEARNED[str(changes)]


@pytest.fixture(scope="module")
def text() -> ProbeText:
    return text_of("gemma3")


def test_the_probe_is_the_decoding_run(text: ProbeText) -> None:
    """Tokens a round, from one pass, equal those of a drafted generate."""
    drafter = trained(text, steps=25, last_tap="raw")
    target = text.view.model
    accepted = accepted_at(drafter, text)
    found = evaluation_of(accepted, BLOCK - 1)
    assert 1.2 < found.tau < BLOCK, "neither all nor nothing, or this shows little"
    dflash_hf.attach(target)
    try:
        target.generate(text.ids[:, : text.prompt_length], assistant=drafter, max_new_tokens=TOKENS, do_sample=False)
        trace = dflash_hf.last_trace()
    finally:
        dflash_hf.detach(target)
    assert trace is not None
    kept = [record.accepted for record in trace.rounds if record.drafted]
    assert len(kept) == found.rounds or abs(len(kept) - found.rounds) <= 1  # the budget may cut the last round
    assert kept[: found.rounds - 1] == _walked(accepted)[: len(kept)][: found.rounds - 1]


def _walked(accepted: torch.Tensor) -> list[int]:
    from dflash_hf.training.evaluate import walk

    return [int(accepted[place]) for place, _ in walk(accepted)]


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {  # trained as, described as, the field to change
    "taps one too high": ({}, {"target_layer_ids": [2, 3]}, "target_layer_ids"),
    "taps one too low": ({}, {"target_layer_ids": [0, 1]}, "target_layer_ids"),
    "causal flag": ({"layer_causal": [True] * 2}, {"layer_causal": [False] * 2}, "layer_causal"),
    "is_causal false left out, on one of two kinds of layers": (
        {"layer_windows": [None, 16]},
        {"layer_causal": [False, True]},
        "layer_causal",
    ),
    "window": ({}, {"layer_windows": [2, 2]}, "layer_windows"),
    "rope theta": (
        {},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "rope_parameters",
    ),
    "next position read as same": (
        {"first_slot": 0},
        {"first_slot": 1, "num_draft_tokens": BLOCK - 1},
        "first_slot",
    ),
    "same position read as next": ({}, {"first_slot": 0, "num_draft_tokens": BLOCK - 1}, "first_slot"),
    "embedding raw": ({}, {"embedding": "target_rows"}, "embedding"),
    "embedding scaled": ({"embedding": "target_rows"}, {"embedding": "target"}, "embedding"),
}


COST_LITTLE = ("taps one too low", "causal flag", "is_causal false left out, on one of two kinds of layers")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, text: ProbeText) -> None:
    right, wrong, field = FAULTS[fault]
    good = learned(text, right)
    before = {name: tensor.clone() for name, tensor in good.state_dict().items()}
    config = deepcopy(good.config)
    for name, value in wrong.items():
        setattr(config, name, value)
    bad = redescribed(good, config)
    most = min(good.config.num_draft_tokens, config.num_draft_tokens)
    tau = evaluation_of(accepted_at(good, text, most=most), most).tau
    found = diagnose(bad, text, near=float("inf"))  # also where a fault costs this small drafter little
    best = max(found.tried, key=lambda each: each[1])[0]
    assert best.field == field and getattr(best.config, field) == getattr(good.config, field)
    if found.evaluation.tau < tau / 1.3:  # a layer lower, or the mask, cost this small drafter less than that
        assert found.better is best and found.hint is None and found.best_tau == pytest.approx(tau)
    else:
        assert found.better is None and found.hint in (best, None) and fault in COST_LITTLE
    assert bad.config.to_dict() == config.to_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in bad.state_dict().items())


@pytest.mark.parametrize(("places", "kept_more"), [(0, False), (1, False), (3, False), (10, True), (60, True)])
def test_a_hint_needs_more_than_chance(places: int, kept_more: bool) -> None:
    """A reading that keeps one token more at so many of 60 places; less elsewhere is chance too."""
    kept = torch.full((60,), 2)
    other = kept.clone()
    other[:places] += 1
    assert diagnose_module._keeps_more(other, kept) is kept_more
    other[30:] = 0
    assert not diagnose_module._keeps_more(other, kept)


@pytest.mark.parametrize(("tau", "named"), [(3.2, "hint"), (3.75, "better")])
def test_a_little_better_is_a_hint_and_a_quarter_more_a_verdict(tau: float, named: str, text: ProbeText) -> None:
    reading = alternatives(trained(text, steps=0).config, text.view)[0]
    found = Diagnosis(Evaluation(1, 20, 60, 1, 1, (20, 15, 5, 0)), (), reading, tau)
    assert found.evaluation.tau == 3.0
    assert (found.better, found.hint) == ((reading, None) if named == "better" else (None, reading))
    row = found.row()
    assert row[named]["tau"] == tau and row["hint" if named == "better" else "better"] is None


def test_a_good_drafter_is_left_alone(text: ProbeText) -> None:
    found = diagnose(learned(text, {}), text)
    assert not found.near_one and not found.tried and found.best is None
    asked = diagnose(learned(text, {}), text, near=float("inf"))
    assert asked.tried and asked.best is None


def test_a_drafter_that_knows_nothing_has_no_better_reading(text: ProbeText) -> None:
    drafter = trained(text, steps=0)
    with torch.no_grad():
        drafter.norm.weight.zero_()  # the same token everywhere, however it is read
    found = diagnose(drafter, text)
    assert found.near_one and found.tried and found.better is None
    assert found.row()["better"] is None and found.row()["hint"] is None


@pytest.mark.parametrize(
    ("windows", "causal", "tried"),
    [
        ([None] * 3, [False] * 3, [[True] * 3]),
        ([9, 9, None], [True, True, False], [[False] * 3, [True] * 3]),
        ([9, 9, None], [False] * 3, [[True] * 3, [True, True, False]]),
        ([9, 9, 9], [True] * 3, [[False] * 3]),
    ],
)
def test_rules_of_causality_are_those_that_somebody_writes(
    windows: list[int | None], causal: list[bool], tried: list[list[bool]], text: ProbeText
) -> None:
    """Each layer the other way round would be a drafter of nobody's."""
    shape: dict[str, Any] = {"num_hidden_layers": 3, "layer_windows": windows, "layer_causal": causal}
    found = alternatives(DFlashConfig(mask_token_id=MASK, **shape), text.view)
    assert [each.config.layer_causal for each in found if each.field == "layer_causal"] == tried


def test_windows_that_a_text_does_not_reach_are_not_tried(text: ProbeText) -> None:
    config = DFlashConfig(mask_token_id=MASK, num_hidden_layers=2, layer_windows=[90, 200], block_size=8)
    for positions, past in ((82, [90, 200]), (83, []), (None, [])):
        assert windows_past(config, positions) == past
        found = [each for each in alternatives(config, text.view, None, positions) if each.field == "layer_windows"]
        assert bool(found) is not bool(past)
    assert windows_past(DFlashConfig(), 10) == []


def test_a_window_past_the_probe_changes_nothing_and_a_shorter_one_does(text: ProbeText) -> None:
    """What the border between the two is: bit for bit."""
    drafter, positions = learned(text, {}), text.ids.shape[1]
    most = positions + BLOCK
    for window, same in ((most, True), (positions // 2, False)):
        config = deepcopy(drafter.config)
        config.layer_windows = [window, window]
        other = accepted_at(redescribed(drafter, config), text)
        assert torch.equal(other, accepted_at(drafter, text)) is same
        assert bool(windows_past(config, positions)) is same
    found = diagnose(redescribed(drafter, _windowed(drafter.config, most)), text, near=float("inf"))
    assert found.unseen == (most,) and found.row()["windows_not_tested"] == [most]


def _windowed(config: DFlashConfig, window: int) -> DFlashConfig:
    other = deepcopy(config)
    other.layer_windows = [window, window]
    return other


def test_without_files_there_are_no_keys_to_set(text: ProbeText) -> None:
    assert {each.keys is None for each in alternatives(trained(text, steps=0).config, text.view)} == {True}
