"""Features computed in padded batches are the hidden states of forwards over one document alone."""

from __future__ import annotations

import pytest
import torch

from dflash_hf.errors import TrainingError
from dflash_hf.target.view import view_target
from dflash_hf.training.documents import Document
from dflash_hf.training.features.features import OnTheFly, length_batches
from tests.families import SIZES, VOCAB, Family
from tests.tiny import CONFIGS, build_target, tiny_target

LENGTHS = (20, 7, 13, 2, 20, 31)  # the tests' windows are of 8
WINDOWED = ("gemma2", "olmo3", "qwen2", "llama4", "gemma4_shared")
DYNAMIC = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}


def documents(lengths=LENGTHS) -> list[Document]:
    drawn = torch.Generator().manual_seed(0)
    return [
        Document(f"d{place}", torch.randint(2, VOCAB, (length,), generator=drawn), 1)
        for place, length in enumerate(lengths)
    ]


@torch.no_grad()
def alone(model, document: Document) -> tuple[torch.Tensor, ...]:
    """The host's hidden states of this document, each [S - 1, width]."""
    hidden = model(document.ids[None, :-1], output_hidden_states=True).hidden_states
    return tuple(layer[0] for layer in hidden)


@pytest.mark.parametrize("kind", sorted({*CONFIGS, *WINDOWED}))
def test_of_gives_the_hidden_states_of_a_forward_over_each_document_alone(kind):
    model = tiny_target(kind)
    asked = documents()
    found = OnTheFly(view_target(model), [2, 0], final=True, batch_tokens=64).of(asked)
    for document, features in zip(asked, found, strict=True):
        hidden = alone(model, document)
        expected = torch.cat([hidden[3], hidden[1]], dim=-1)
        scale = float(expected.abs().max())
        torch.testing.assert_close(features.taps, expected, atol=1e-5 * scale, rtol=1e-4)
        torch.testing.assert_close(features.final, hidden[-1], atol=1e-5 * scale, rtol=1e-4)


def test_of_gives_the_final_state_once_more_where_the_last_layer_is_tapped():
    model = tiny_target("qwen3")
    asked = documents((9, 5))
    for layers in ([3, 1], [1, 3]):
        for document, features in zip(asked, OnTheFly(view_target(model), layers, final=True).of(asked), strict=True):
            hidden = alone(model, document)
            torch.testing.assert_close(features.taps, torch.cat([hidden[layer + 1] for layer in layers], dim=-1))
            torch.testing.assert_close(features.final, hidden[4])


def test_of_stays_within_the_tokens_of_a_batch_and_never_runs_the_head(monkeypatch):
    view = view_target(tiny_target())
    monkeypatch.setattr(view.head, "forward", lambda *_: pytest.fail("the head ran"))
    shapes = []
    view.decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    OnTheFly(view, [1], batch_tokens=40).of(documents())
    assert sorted(shapes) == [(1, 30), (2, 19), (3, 12)]


def test_of_can_reach_autograd_and_leaves_no_hooks():
    view = view_target(tiny_target())
    (features,) = OnTheFly(view, [1]).of(documents((6,)))
    assert features.final is None and not features.taps.requires_grad and not features.taps.is_inference()
    weight = torch.ones(features.taps.shape[-1], requires_grad=True)
    (features.taps @ weight).sum().backward()
    torch.testing.assert_close(weight.grad, features.taps.sum(dim=0))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in view.model.modules())


def test_of_runs_documents_alone_where_the_longest_row_would_change_the_frequencies_of_all():
    family = Family("LlamaConfig", SIZES | {"max_position_embeddings": 16, "rope_parameters": DYNAMIC})
    asked = documents((40, 9, 24, 12))
    for document, features in zip(asked, OnTheFly(view_target(build_target(family)), [3]).of(asked), strict=True):
        fresh = build_target(family)  # what an earlier forward left behind would stay
        torch.testing.assert_close(features.taps, alone(fresh, document)[4], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "length", "layers", "message"),
    [
        ("gpt2", 130, [0], "d0 has 130 tokens, .* has positions for 128"),
        ("llama", 1, [0], "d0 has 1 tokens"),
        ("llama", 9, [1, 4, 7], "layers 4, 7 are asked for, .* has layers 0 to 3"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(kind, length, layers, message):
    view = view_target(tiny_target(kind))
    with pytest.raises(TrainingError, match=message):
        OnTheFly(view, layers).of(documents((length,)))


def test_a_document_as_long_as_the_table_of_positions_runs():
    (features,) = OnTheFly(view_target(tiny_target("gpt2")), [0]).of(documents((129,)))
    assert features.taps.shape == (128, 32)


def test_length_batches_hold_every_place_once_and_keep_the_bound():
    lengths = torch.randint(1, 60, (200,), generator=torch.Generator().manual_seed(1)).tolist()
    batches = length_batches(lengths, 128)
    assert sorted(place for batch in batches for place in batch) == list(range(200))
    assert all(len(batch) * max(lengths[place] for place in batch) <= 128 for batch in batches)
    assert length_batches([500, 3], 128) == [[1], [0]]
