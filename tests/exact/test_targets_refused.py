"""Targets that cannot be drafted for are refused by name before any forward; an attached default refuses them too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import DFlashError, UnsupportedTargetError
from dflash_hf.generation.attach import attach, generate
from dflash_hf.generation.record import last_trace
from tests.families import IDS, SIZES, VOCAB, Family
from tests.hybrids import DISCONTINUOUS, ELSEWHERE, HALF_LINEAR
from tests.scripted import tiny_config
from tests.tiny import build_target, greedy, prompt, tiny_target

SEQ2SEQ = "AutoModelForSeq2SeqLM"
TWO_STACKS = {"vocab_size": VOCAB, "d_model": 32, "decoder_start_token_id": 0, **IDS}

TWO = {
    "t5": Family("T5Config", TWO_STACKS | {"d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4}, SEQ2SEQ),
    "bart": Family(
        "BartConfig",
        TWO_STACKS | {"encoder_layers": 1, "decoder_layers": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
        SEQ2SEQ,
    ),
}
CACHELESS = {
    "openai_gpt": Family(
        "OpenAIGPTConfig", {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64, **IDS}
    ),
    "mpt": Family("MptConfig", {"vocab_size": VOCAB, "d_model": 32, "n_layers": 4, "n_heads": 4, **IDS}),
    "minimax": Family(
        "MiniMaxConfig", SIZES | HALF_LINEAR | {"num_local_experts": 2, "num_experts_per_tok": 1, "block_size": 16}
    ),
    "xlnet": Family(
        "XLNetConfig", {"vocab_size": VOCAB, "d_model": 32, "n_layer": 4, "n_head": 4, "d_inner": 48, **IDS}
    ),
}
REFUSED = [
    *((kind, family, UnsupportedTargetError, "several tokens at once") for kind, family in DISCONTINUOUS.items()),
    *((kind, family, UnsupportedTargetError, "elsewhere than in the cache") for kind, family in ELSEWHERE.items()),
    *((kind, family, UnsupportedTargetError, "encoder-decoder") for kind, family in TWO.items()),
    *((kind, family, DFlashError, "cache|list of decoder layers") for kind, family in CACHELESS.items()),
]


@contextmanager
def no_forwards(model: nn.Module) -> Iterator[None]:
    """Any forward of the model or of one of its layers inside this block is an error; a mixer may be tried."""

    def work(module: nn.Module, *_: object) -> None:
        raise AssertionError(f"{type(module).__name__} was run")

    layers = [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
    handles = [module.register_forward_pre_hook(work) for module in (model, *layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize(("kind", "family", "error", "says"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_target_that_cannot_be_drafted_for_is_refused_before_any_work(kind, family, error, says):
    model, drafter = build_target(family), DFlashDrafter(tiny_config(tiny_target()))
    with no_forwards(model), pytest.raises(error, match=says) as caught:
        generate(model, prompt(), assistant=drafter, max_new_tokens=4)
    assert type(model).__name__ in str(caught.value), "by name"


@pytest.mark.parametrize("kind", sorted([*DISCONTINUOUS, *ELSEWHERE, *TWO, "xlnet"]))
def test_attach_refuses_it_too_and_leaves_the_model_as_it_was(kind):
    model = build_target((DISCONTINUOUS | ELSEWHERE | TWO | CACHELESS)[kind])
    with no_forwards(model), pytest.raises(UnsupportedTargetError, match=type(model).__name__):
        attach(model, DFlashDrafter(tiny_config(tiny_target())))
    assert not {"generate", "_get_candidate_generator"} & vars(model).keys()


@pytest.mark.parametrize("kind", sorted(CACHELESS.keys() - {"xlnet"}))
def test_without_a_cache_an_attached_default_says_so_and_gives_plain_text(kind):
    model = build_target(CACHELESS[kind])
    expected = greedy(model, prompt(), 6)
    attach(model, DFlashDrafter(tiny_config(tiny_target())))
    with pytest.warns(UserWarning, match="running without the attached drafter.*cache"):
        assert torch.equal(model.generate(prompt(), max_new_tokens=6, do_sample=False), expected)
    assert "cache" in last_trace().fallback
