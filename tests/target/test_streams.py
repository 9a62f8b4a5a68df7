"""A target whose layers hand on several hidden states of a token is refused by name, before any forward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.generation.attach import generate
from dflash_hf.target.streams import hidden_streams
from tests.exact.test_targets_refused import no_forwards
from tests.families import MIXED, PER_LAYER, SIZES, Family
from tests.scripted import tiny_config
from tests.tiny import build_target, prompt

GEMMA3N = SIZES | MIXED | PER_LAYER | {"num_kv_shared_layers": 0, "laurel_rank": 8, "altup_num_inputs": 3}


def test_altup_is_refused_before_any_work():
    model = build_target(Family("Gemma3nTextConfig", GEMMA3N | {"activation_sparsity_pattern": [0.0] * 4}))
    drafter = DFlashDrafter(tiny_config(model))
    with no_forwards(model), pytest.raises(UnsupportedTargetError, match="Gemma3nForCausalLM.*3 hidden states"):
        generate(model, prompt(), assistant=drafter, max_new_tokens=4)


@pytest.mark.parametrize(("field", "value", "streams"), [("hc_mult", 4, 4), ("hc_count", 2, 2), ("hc_mult", None, 1)])
def test_hyper_connections_count_as_streams(field, value, streams):
    assert hidden_streams(SimpleNamespace(**{field: value})) == streams
