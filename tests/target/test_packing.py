"""Packed weights compute what the layers do, follow the weights, keep to their thread and leave nothing behind."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from dflash_hf import DFlashOptions, OptionsError, last_trace
from dflash_hf.generation.attach import generate
from dflash_hf.target import packing
from dflash_hf.target.packing import PackedWeights
from tests.exact.unchanged import Unchanged
from tests.scripted import scripted
from tests.tiny import greedy, prompt, tiny_target

pytestmark = pytest.mark.skipif(not packing._machine_packs(), reason="packing needs oneDNN on an x86 CPU")
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
NATIVE_BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.fixture(autouse=True)
def _as_generate_does():
    """Copies are read where no gradients are recorded."""
    with torch.no_grad():
        yield


def layer(inputs: int = 24, outputs: int = 40, bias: bool = True, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


def packed(*modules: nn.Module) -> PackedWeights:
    return PackedWeights(modules, "always")


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 20), st.booleans(), st.booleans())
def test_a_packed_product_is_the_layers_own(inputs, outputs, rows, bias, strided):
    linear = layer(inputs, outputs, bias)
    states = torch.randn(2, 2 * rows, inputs)[:, ::2] if strided else torch.randn(2, rows, inputs)
    own = linear(states)
    with packed(linear) as weights:
        assert weights.bytes == linear.weight.nbytes
        torch.testing.assert_close(linear(states), own, **CLOSE)
    assert torch.equal(linear(states), own)


@pytest.mark.skipif(
    NATIVE_BF16, reason="a CPU with instructions for bfloat16 needs no copies; runs on one without, such as AVX2"
)
def test_bfloat16_is_summed_in_float32_and_rounded_once():
    linear, states = layer().to(torch.bfloat16), torch.randn(1, 5, 24, dtype=torch.bfloat16)
    exact = nn.functional.linear(states.double(), linear.weight.double(), linear.bias.double())
    with packed(linear) as weights:
        assert weights.bytes == 4 * linear.weight.numel()
        steps = (linear(states).double() - exact).abs() / exact.abs().clamp(min=1e-3)
        assert steps.max() < 2**-8 * 1.01  # half a step of bfloat16, and float32's own rounding
        lone = torch.equal(linear(states[:, :1]), nn.functional.linear(states[:, :1], linear.weight, linear.bias))
    assert lone


@pytest.mark.parametrize("how", ["in place", "through .data", "replaced", "one number"])
def test_changed_weights_are_packed_anew(how):
    linear, states = layer(), torch.randn(1, 4, 24)
    with packed(linear):
        linear(states)
    if how == "in place":
        linear.weight.mul_(2)
    elif how == "through .data":
        linear.weight.data += 1
    elif how == "replaced":
        linear.weight = nn.Parameter(torch.randn(40, 24), requires_grad=False)
    else:
        linear.weight.data[39, 23] += 1
    own = linear(states)
    with packed(linear):
        torch.testing.assert_close(linear(states), own, **CLOSE)


def test_the_same_weights_are_packed_once():
    linear = layer()
    with packed(linear):
        first = vars(linear)["forward"]
    with packed(linear):
        assert vars(linear)["forward"] is first


def test_other_threads_get_the_layers_own_product():
    linear, states, seen = layer(200, 300), torch.randn(1, 6, 200), []

    def other():
        own = nn.functional.linear(states, linear.weight, linear.bias)
        seen.append(torch.equal(linear(states), own))

    with packed(linear):
        assert not torch.equal(linear(states), nn.functional.linear(states, linear.weight, linear.bias))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [True]


def test_two_threads_read_one_copy_and_the_last_one_clears_up():
    linear, entered, leave = layer(), threading.Event(), threading.Event()

    def other():
        with packed(linear):
            entered.set()
            leave.wait(10)

    with packed(linear):
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(10)
    assert "forward" in vars(linear)
    leave.set()
    thread.join()
    assert "forward" not in vars(linear)


def test_weights_that_change_while_they_are_read_elsewhere_stay_unpacked():
    linear, states = layer(), torch.randn(1, 4, 24)
    found = []

    def other():
        with packed(linear) as weights:
            found.append((weights.bytes, linear(states)))

    with packed(linear):
        linear.weight.data += 1
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found[0][0] == 0
    assert torch.equal(found[0][1], linear(states))


def test_nested_blocks_end_one_by_one():
    linear = layer()
    with packed(linear):
        with packed(linear):
            pass
        assert "forward" in vars(linear)
    assert "forward" not in vars(linear)


def test_layers_with_a_forward_of_their_own_and_subclasses_are_left_alone():
    class Quantised(nn.Linear):
        pass

    hooked, special, whole = layer(), Quantised(24, 40), layer()
    hooked.forward = lambda states: states  # as accelerate's offloading does
    nn.utils.parametrizations.weight_norm(normed := layer())
    half = layer().to(torch.float16)
    modules = nn.ModuleList([hooked, special, normed, half, whole])
    with packed(modules) as weights:
        assert weights.bytes == whole.weight.nbytes
        assert hooked(3) == 3
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(OptionsError, match="nothing to pack"), packed(whole):
        pass


def test_nothing_is_left_after_an_exception_or_a_failure_to_pack(monkeypatch):
    first, second = layer(), layer(seed=1)
    with pytest.raises(KeyboardInterrupt), packed(first):
        raise KeyboardInterrupt
    real = packing._reader_of
    monkeypatch.setattr(packing, "_reader_of", lambda linear: real(linear) if linear is first else 1 / 0)
    with pytest.raises(ZeroDivisionError), packed(nn.ModuleList([first, second])):
        pass
    assert not {"forward"} & (vars(first).keys() | vars(second).keys())


def test_a_copy_dies_with_its_layer():
    linear = layer()
    with packed(linear):
        copy = weakref.ref(vars(linear)["forward"])
    del linear
    gc.collect()
    assert copy() is None


@pytest.mark.parametrize(("worth", "free", "packs"), [(0, 10**9, True), (10**6, 10**9, False), (0, 10**4, False)])
def test_auto_packs_what_is_worth_it_and_fits(monkeypatch, worth, free, packs):
    linear = layer()  # 3,840 bytes
    monkeypatch.setattr(packing, "_WORTH_BYTES", worth)
    monkeypatch.setattr(packing.psutil, "virtual_memory", lambda: type("Memory", (), {"available": free}))
    with PackedWeights([linear], "auto") as weights:
        assert bool(weights.bytes) == packs
    with PackedWeights([linear], "never") as weights:
        assert not weights.bytes


def test_weights_at_odd_addresses_are_told_apart():
    """Weights mapped from a file may start anywhere."""
    for start in range(1, 5):
        flat = torch.randn(start + 24 * 40)
        linear = layer()
        linear.weight = nn.Parameter(flat[start:].view(40, 24), requires_grad=False)
        before = packing._stamp(linear.weight)
        linear.weight.data[0, 0] += 1
        assert packing._stamp(linear.weight) != before


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "gpt2", "gemma3"])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_drafted_call_with_packed_weights_gives_plain_text_and_leaves_the_pair_as_it_was(kind, rows):
    model, ids = tiny_target(kind), prompt().repeat(rows, 1)
    plain = greedy(model, ids, 24)
    drafter = scripted(model, list(plain), lambda place: place % 3 == 0)
    with Unchanged(model, drafter):
        drafted = generate(
            model, ids, assistant=drafter, max_new_tokens=24, do_sample=False,
            dflash=DFlashOptions(pack_weights="always"),
        )  # fmt: skip
    assert torch.equal(drafted, plain)
    assert last_trace().packed_bytes > 0
    generate(model, ids, assistant=drafter, max_new_tokens=4, do_sample=False)
    assert last_trace().packed_bytes == 0  # a tiny model is not worth it


def test_an_unknown_word_is_refused():
    with pytest.raises(OptionsError, match="pack_weights"):
        DFlashOptions(pack_weights=True)


@pytest.mark.parametrize("axis", [0, 1])
def test_weights_in_another_order_are_packed_anew(axis):
    linear, states = layer(), torch.randn(1, 4, 24)
    with packed(linear):
        linear(states)
    linear.weight.data.copy_(linear.weight.flip(axis).clone())  # the same numbers, at the same place
    own = linear(states)
    with packed(linear):
        torch.testing.assert_close(linear(states), own, **CLOSE)


def test_gradients_flow_where_somebody_asks_for_them_meanwhile():
    linear, states = layer(), torch.randn(1, 4, 24, requires_grad=True)
    with packed(linear):
        with torch.enable_grad():
            linear(states).sum().backward()
        assert not linear(states).requires_grad
    torch.testing.assert_close(states.grad[0, 0], linear.weight.sum(dim=0), **CLOSE)


def test_a_model_is_copied_and_pickled_meanwhile():
    linear, states = nn.Sequential(layer()), torch.randn(1, 4, 24)
    own = linear(states)
    with packed(linear):
        copied, pickled = copy.deepcopy(linear), pickle.loads(pickle.dumps(linear))
    for model in (copied, pickled):
        assert torch.equal(model(states), own)
        model[0].weight.data.zero_()
        assert not (model(states) - model[0].bias).abs().max(), "it reads its own weights"
        with packed(model):
            assert not (model(states) - model[0].bias).abs().max()


def test_what_is_put_in_the_weights_place_meanwhile_counts():
    linear, states = layer(), torch.randn(1, 4, 24)
    zeros = {"weight": torch.zeros(40, 24), "bias": torch.zeros(40)}
    with packed(linear):
        assert not torch.func.functional_call(linear, zeros, states).any()
        linear.forward = other = lambda states: states
    assert vars(linear)["forward"] is other, "somebody else's forward stays"


def test_copies_that_cannot_be_read_any_more_are_dropped():
    linear = layer()
    with packed(linear):
        pass
    assert linear in packing._COPIES
    linear.half()
    with PackedWeights([linear], "auto"):
        pass
    assert linear not in packing._COPIES
