"""Long texts: the text of plain decoding, with and without a draft window, and memory that stays where it should."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from tests.exact.same import PATTERNS
from tests.families import SIZES, Family
from tests.scripted import scripted
from tests.tiny import build_target, greedy, prompt

NEW, CHUNK = 12, 512
WIDTH = SIZES["hidden_size"]
ROW = 2 * 16 * 4  # bytes of a key and a value of one drafter layer


@pytest.fixture(scope="module")
def target():
    """One head of eight dimensions in each layer: its prefill is short even at 32k."""
    small = {"num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1}
    return build_target(Family("LlamaConfig", SIZES | small | {"max_position_embeddings": 65536}))


def drafted(model, ids, text, window=None, chunk=CHUNK, **changes):
    changes |= {"target_layer_ids": [0, 1], "max_position_embeddings": 65536}
    drafter = scripted(model, text, PATTERNS["spoiled"], **changes)
    options = {"max_new_tokens": NEW, "do_sample": False, "prefill_chunk_size": chunk}
    return generate(model, ids, assistant=drafter, dflash={"draft_window": window}, **options)


def most_bytes(window, layer_windows, tokens):
    """What a context may take: of each layer twice its rows and a chunk, and as many positions as the longest has."""
    seen = [min([tokens, *(each - 1 for each in (window, own) if each is not None)]) for own in layer_windows]
    rooms = [max(256, 2 * (rows + CHUNK)) for rows in seen]
    return ROW * sum(rooms) + 8 * 2 * (max(rooms) + CHUNK)


def check(model, length):
    ids = prompt(length)
    text = greedy(model, ids, NEW, prefill_chunk_size=CHUNK)
    for window, windows in ((None, [None, None]), (300, [None, None]), (None, [300, 40]), (1000, [300, None])):
        case = f"draft_window={window}, layer windows {windows}"
        assert torch.equal(drafted(model, ids, text, window, layer_windows=windows), text), case
        trace = last_trace()
        assert sum(record.accepted for record in trace.rounds) > NEW // 3, case
        assert trace.context_bytes <= most_bytes(window, windows, length + NEW), case
        assert trace.taps_bytes == 2 * (2 * CHUNK * WIDTH * 4), f"{case}: two taps of a chunk, apart and side by side"
    assert trace.context_bytes < ROW * length < most_bytes(None, [None], length), "a bound that unbounded stores miss"


def test_four_thousand_tokens_give_plains_text_with_any_window(target):
    check(target, 4096)


@pytest.mark.slow
def test_thirty_two_thousand_tokens_give_plains_text_with_any_window(target):
    check(target, 32768)


class Alive:
    """Counts rows of hidden states that are still in memory, by storage: views and copies of references count once."""

    def __init__(self):
        self._seen = []
        self.most = 0

    def see(self, states):
        self._seen = [(ref, rows) for ref, rows in self._seen if not ref.expired()]
        self._seen.append((StorageWeakRef(states.untyped_storage()), states.shape[1]))
        self.most = max(self.most, sum(rows for _, rows in self._seen))


@pytest.mark.parametrize(("chunk", "part"), [(200, 200), (None, 1024)])
def test_taps_of_one_part_are_held_at_a_time(target, monkeypatch, chunk, part):
    """With chunks the layers' outputs are gone with their chunk; without, they stay until the forward ends."""
    ids, outputs, parts, cat = prompt(2500), Alive(), Alive(), torch.cat
    text = greedy(target, ids, NEW)

    def cat_and_tell(*args, **kwargs):
        made = cat(*args, **kwargs)
        if made.shape[-1] == 2 * WIDTH:  # both taps, side by side
            parts.see(made)
        return made

    monkeypatch.setattr(torch, "cat", cat_and_tell)
    handle = target.model.layers[0].register_forward_hook(lambda _m, _a, out: outputs.see(out))
    try:
        drafted(target, ids, text, chunk=chunk)
    finally:
        handle.remove()
    assert parts.most == part
    assert outputs.most == (chunk or 2500)
