"""Run one call of ``generate`` plainly and drafted, and hold every part of the two answers against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from dflash_hf.target.state import cached_length
from tests.scripted import scripted, tiny_config

LIMIT = 1e-4  # float32, for scores, logits, hidden states and attentions
RANDOM = "random"
PATTERNS: dict[str, Callable[[int], bool] | None] = {
    "all": lambda place: False,
    "none": lambda place: True,
    "spoiled": lambda place: place % 3 == 0,
    RANDOM: None,
}
Call = Callable[[], dict[str, Any]]  # makes generate's arguments anew: processors, criteria and caches keep state


def drafter_for(model: PreTrainedModel, sequences: Tensor, kind: str, **changes: Any) -> DFlashDrafter:
    """A drafter that proposes ``sequences`` [B, S + n] (padding left out) as ``kind`` says; or a random network."""
    spoil = PATTERNS[kind]
    if spoil is None:
        torch.manual_seed(2)
        return DFlashDrafter(tiny_config(model, **changes)).to(model.dtype).eval()
    return scripted(model, list(sequences), spoil, **changes)


def assert_same(
    model: PreTrainedModel,
    ids: Tensor | None,
    call: Call,
    kind: str = "spoiled",
    padding: int = 0,
    before: Tensor | None = None,
    **changes: Any,
) -> tuple[Any, Any]:
    """``model.generate(ids, **call())`` with and without a drafter give the same; returns (drafted, plain).

    A drafter that is right somewhere must have been believed there, or the equality shows nothing of drafting.

    Args:
        model: the target; greedy calls only, or draws with one outcome (``top_k=1``).
        ids: the prompt, or None for calls that bring another input.
        call: makes the arguments, once for each of the two runs.
        kind: the drafter, one of ``PATTERNS``.
        padding: how many tokens of the left are padding: the script starts after them.
        before: ids [B, P] that stand before what is returned: those of embeddings.
        changes: fields of the drafter's config.
    """
    plain = type(model).generate(model, ids, **call())
    said = _sequences(plain)[:, padding:]
    script = said if before is None else torch.cat([before, said], dim=1)
    drafted = generate(model, ids, assistant=drafter_for(model, script, kind, **changes), **call())
    assert_equal_outputs(drafted, plain)
    _assert_believed(kind)
    return drafted, plain


def _assert_believed(kind: str) -> None:
    """The script was accepted where it is right: by whole blocks, or past the first token that it spoils."""
    trace = last_trace()
    for row in [] if trace is None else (trace, *trace.rows):
        drafting = [record for record in row.rounds if record.drafted]
        if kind == "all":
            assert all(record.accepted == len(record.drafted) for record in drafting[:-1]), "it is not this text's"
        elif kind == "spoiled" and len(drafting) > 1:
            assert any(record.accepted for record in drafting), "nothing was accepted: it is not this text's"


def _sequences(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.sequences


def assert_equal_outputs(drafted: Any, plain: Any) -> None:
    """Same tokens, same structure, values within ``LIMIT``, caches of the same length and shape."""
    assert torch.equal(_sequences(drafted), _sequences(plain))
    if isinstance(plain, Tensor):
        return
    assert list(drafted.keys()) == list(plain.keys())
    for name in plain:
        if name in ("cache", "past_key_values"):
            assert_equal_caches(drafted[name], plain[name])
        elif name != "sequences":
            _assert_close(drafted[name], plain[name], name)


def _assert_close(drafted: Any, plain: Any, where: str) -> None:
    if not isinstance(plain, Tensor):
        assert type(drafted) is type(plain), where
        if plain is not None:
            assert len(drafted) == len(plain), where
            for place, (mine, theirs) in enumerate(zip(drafted, plain, strict=True)):
                _assert_close(mine, theirs, f"{where}[{place}]")
        return
    assert drafted.shape == plain.shape, f"{where}: {tuple(drafted.shape)} for {tuple(plain.shape)}"
    assert drafted.dtype == plain.dtype and drafted.device == plain.device, where
    torch.testing.assert_close(drafted, plain, rtol=LIMIT, atol=LIMIT, equal_nan=True, msg=lambda m: f"{where}: {m}")


def assert_equal_caches(drafted: Any, plain: Any) -> None:
    """Two caches hold the same: length, mode, and per layer every tensor."""
    assert type(drafted) is type(plain)
    assert cached_length(drafted) == cached_length(plain)
    assert len(drafted.layers) == len(plain.layers)
    for number, (mine, theirs) in enumerate(zip(drafted.layers, plain.layers, strict=True)):
        assert type(mine) is type(theirs)
        assert vars(mine).keys() == vars(theirs).keys()
        for name, value in vars(theirs).items():
            where, own = f"layer {number}: {name}", vars(mine)[name]
            if isinstance(value, dict):
                for key in value:
                    _assert_equal_value(own[key], value[key], f"{where}[{key}]")
            else:
                _assert_equal_value(own, value, where)


def _assert_equal_value(mine: Any, theirs: Any, where: str) -> None:
    if isinstance(theirs, Tensor):
        _assert_close(mine, theirs, where)
    else:
        assert mine == theirs, where
