"""Streamers get the prompt, then every token once, in order, flat, and one end; rounds are reported as they finish."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.streamers import BaseStreamer

from dflash_hf.generation.attach import attach
from dflash_hf.generation.record import last_trace
from dflash_hf.options import DFlashOptions
from dflash_hf.target.host import cache_key
from tests.scripted import scripted
from tests.tiny import greedy, prompt, tiny_target


class _Stream(BaseStreamer):
    def __init__(self, stop_after: int | None = None) -> None:
        self.chunks: list[torch.Tensor] = []
        self.ends, self.stop_after = 0, stop_after

    def put(self, value):
        self.chunks.append(value)
        if self.stop_after is not None and len(self.chunks) > self.stop_after:
            raise KeyboardInterrupt

    def end(self):
        self.ends += 1


@pytest.fixture(scope="module")
def model():
    return attach(tiny_target())


def test_streamer_gets_the_prompt_then_every_token_flat(model):
    text, stream = greedy(model, prompt(), 30), _Stream()
    model.generate(
        prompt(),
        max_new_tokens=30,
        do_sample=False,
        streamer=stream,
        assistant=scripted(model, text, lambda p: p % 4 == 0),
    )
    assert torch.equal(stream.chunks[0], prompt())
    assert all(chunk.dim() == 1 and chunk.device.type == "cpu" for chunk in stream.chunks[1:])
    assert torch.equal(torch.cat(stream.chunks[1:]), text[0, 7:])
    assert stream.ends == 1


def test_on_round_reports_rounds_with_their_times_as_they_finish(model):
    text, seen = greedy(model, prompt(), 30), []
    options = DFlashOptions(on_round=lambda record: seen.append((record.committed, record.round_ms)))
    model.generate(prompt(), max_new_tokens=30, do_sample=False, assistant=scripted(model, text), dflash=options)
    rounds = last_trace().rounds
    assert [committed for committed, _ in seen] == [record.committed for record in rounds]
    assert all(elapsed > 0 for _, elapsed in seen)
    assert seen == [(record.committed, record.round_ms) for record in rounds], "times are counted once"
    assert last_trace().prefill_ms > 0
    for record in rounds:
        parts = record.drafter_ms + record.head_ms + record.target_ms
        assert 0 < parts <= record.round_ms


@pytest.mark.parametrize("stop_after", [1, 2, 4])
def test_an_interrupted_call_leaves_nothing_behind(model, stop_after):
    from transformers import DynamicCache

    text, cache = greedy(model, prompt(), 30), DynamicCache(config=model.config)
    hooks = [len(layer._forward_hooks) for layer in model.model.layers]
    drafter = scripted(model, text, lambda place: place % 4 == 0)
    with pytest.raises(KeyboardInterrupt):
        model.generate(
            prompt(), max_new_tokens=30, do_sample=False, streamer=_Stream(stop_after), assistant=drafter,
            **{cache_key(model): cache},
        )  # fmt: skip
    assert [len(layer._forward_hooks) for layer in model.model.layers] == hooks
    again = model.generate(prompt(), max_new_tokens=30, do_sample=False, assistant=drafter)
    assert torch.equal(again, text)
    written = cache.get_seq_length()
    resumed = model.generate(
        text[:, : written + 1], max_new_tokens=5, do_sample=False, assistant=drafter, **{cache_key(model): cache}
    )
    assert torch.equal(resumed, text[:, : written + 6]), "the cache holds a prefix of the text"


def test_a_forward_cut_short_between_layers_is_undone(model):
    """Ctrl-C inside the target's forward: some layers have taken the block, others not."""
    from transformers import DynamicCache

    text, cache = greedy(model, prompt(), 30), DynamicCache(config=model.config)
    calls = []

    def interrupt(_module, _args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    handle = model.model.layers[2].register_forward_pre_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.generate(
                prompt(),
                max_new_tokens=30,
                do_sample=False,
                assistant=scripted(model, text),
                **{cache_key(model): cache},
            )
    finally:
        handle.remove()
    lengths = {layer.get_seq_length() for layer in cache.layers}
    assert lengths == {15}, "the prompt, the first token's round of 8, nothing of the second round"
