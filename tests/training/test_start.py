"""Where a run starts: sizes from the target, weights from its layers, or a drafter that exists."""

from __future__ import annotations

import pytest
import torch

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import DFlashError, TrainingError
from dflash_hf.target.view import view_target
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.shape import default_layer_ids
from dflash_hf.training.start import starting_drafter
from tests.families import FAMILIES
from tests.scripted import tiny_config
from tests.tiny import build_target, tiny_target

BASE = {"answers": ["a"], "output": "o", "steps": 3, "mask_token_id": 1}


def recipe(**changes):
    return Recipe.of({**BASE, **changes})


@pytest.mark.parametrize(
    ("layers", "expected"), [(36, [1, 9, 17, 25, 33]), (30, [1, 8, 14, 20, 27]), (2, [1]), (1, [0])]
)
def test_default_layers_are_spread_evenly(layers, expected):
    assert default_layer_ids(layers) == expected


def test_copied_layers_compute_what_the_targets_layers_compute():
    """One layer that takes the last tap as context: warm weights are the target's, norms included."""
    target = tiny_target("llama")
    view = view_target(target)
    drafter = starting_drafter(view, recipe(warm_layers=[2, 3], target_layer_ids=[0, 2]))
    for layer, source in zip(drafter.layers, (2, 3), strict=True):
        theirs = dict(view.layers[source].named_parameters())
        for name in ("self_attn.q_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight"):
            assert torch.equal(dict(layer.named_parameters())[name], theirs[name])
    taps = torch.randn(1, 5, 2 * view.hidden_size)
    normed = view.layers[2].input_layernorm(taps[..., view.hidden_size :])
    torch.testing.assert_close(drafter.fusion(taps)[0], normed)


def test_a_start_depends_on_the_seed_and_disturbs_no_other_generator():
    view = view_target(tiny_target())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, same, other = (
        starting_drafter(view, recipe(target_layer_ids=[0, 2], seed=seed)).fusion.fc.weight for seed in (0, 0, 1)
    )
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert torch.equal(torch.rand(3), expected)


def test_start_from_takes_a_drafter_with_its_weights_and_another_block_size(tmp_path):
    target = tiny_target()
    torch.manual_seed(0)
    drafter = DFlashDrafter(tiny_config(target))
    drafter.save_pretrained(tmp_path / "drafter")
    start = recipe(mask_token_id=None, start_from=str(tmp_path / "drafter"), block_size=4)
    found = starting_drafter(view_target(target), start)
    assert found.config.block_size == 4 and found.dtype == torch.float32
    for name, weight in found.state_dict().items():
        torch.testing.assert_close(weight, drafter.state_dict()[name])
    with pytest.raises(TrainingError, match=r"num_hidden_layers is 2, the recipe says 3.*Take these keys out"):
        starting_drafter(view_target(target), start.changed(num_hidden_layers=3))


def test_what_cannot_be_started_is_said():
    view = view_target(tiny_target())
    with pytest.raises(TrainingError, match="mask_token_id"):
        starting_drafter(view, recipe(mask_token_id=None))
    with pytest.raises(TrainingError, match="mask_token_id=960.*ids from 0 to 95"):
        starting_drafter(view, recipe(mask_token_id=960))
    with pytest.raises(TrainingError, match="layers 0 to 3"):
        starting_drafter(view, recipe(warm_layers=[2, 9]))
    with pytest.raises(DFlashError, match=r"target_layer_ids \[61\].*layers 0 to 3"):
        starting_drafter(view, recipe(target_layer_ids=[61]))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_new_drafter_for_every_family(family):
    view = view_target(build_target(FAMILIES[family]))
    drafter = starting_drafter(view, recipe(num_hidden_layers=1))
    assert drafter.config.hidden_size == view.hidden_size
    embeds = view.embed(torch.tensor([[3, 1, 1]]))
    hidden = drafter(embeds, position_ids=torch.arange(3)[None]).last_hidden_state
    assert torch.isfinite(view.project(hidden)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_embedding": True}, "an embedding of its own for the mask"),
        ({"fusion": "mixed"}, "another fusion"),
        ({"head": {"kind": "markov", "type": "gated", "rank": 4}, "vocab_size": 96}, "Markov head of type gated"),
        (
            {"head": {"kind": "gru", "hidden": 4, "bottleneck": 4, "first_corrected": 1}, "vocab_size": 96},
            "a gru head",
        ),
        ({"layer_windows": [4, None], "window_rule": "anchor"}, "windows that are not counted from each slot"),
    ],
)
def test_a_drafter_with_what_no_loss_reaches_is_not_trained_on(monkeypatch, changes, message):
    """Its embedding, head or layers would be left out of the loss without a word."""
    drafter = DFlashDrafter(tiny_config(tiny_target(), **changes))
    monkeypatch.setattr(DFlashDrafter, "from_pretrained", lambda *_args, **_kwargs: drafter)
    with pytest.raises(TrainingError, match=rf"cannot be trained on.*: it has .*{message}"):
        starting_drafter(view_target(tiny_target()), recipe(mask_token_id=None, start_from="org/drafter"))
