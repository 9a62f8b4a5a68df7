"""How the timed runs take their tokens."""

from __future__ import annotations

import pytest

from dflash_hf.bench.answers import Sampling, drafted, plain
from dflash_hf.bench.pair import PairSource
from dflash_hf.bench.prompts import encode
from tests.cli.conftest import Files, files

__all__ = ["files"]


@pytest.mark.parametrize(("name", "value"), [("top_k", 1), ("min_p", 1.0)])
def test_a_models_own_generation_config_does_not_decide_a_draw(
    files: Files, name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either value leaves one token to draw: the text would be the greedy one."""
    pair = PairSource(str(files.target), str(files.drafter), device_map="cpu", local_files_only=True).load()
    inputs = encode(pair.tokenizer, "a walk to")
    monkeypatch.setattr(pair.model.generation_config, name, value)
    greedy, hot = Sampling(12), Sampling(12, temperature=5.0)
    for lane in (plain, drafted):
        assert lane(pair, inputs, hot).tokens != lane(pair, inputs, greedy).tokens
