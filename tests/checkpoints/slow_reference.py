"""DFlash v1's maths once more: loops over Python floats, from the survey's words, sharing nothing with the package.

No cache, no batches, no tensors: every block is computed from all taps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Vector = list[float]


@dataclass(frozen=True)
class Rules:
    """What a checkpoint means, said by the test and not read from its config."""

    windows: Sequence[int | None]  # per layer; a query sees keys less than this far away
    causal: Sequence[bool]  # per layer
    heads: int
    kv_heads: int
    head_dim: int
    theta: float
    eps: float = 1e-6
    yarn: tuple[float, int] | None = None  # factor, original length


def slow_block(
    tensors: dict[str, Tensor], rules: Rules, taps: Tensor, tap_positions: list[int], noise: Tensor, first: int
) -> list[Vector]:
    """Hidden states after the final norm of every slot. ``taps`` [C, L * width], ``noise`` [K, width]."""
    weights = {name: tensor.double().tolist() for name, tensor in tensors.items()}
    features = [
        _norm(_times(weights["fc.weight"], row), weights["hidden_norm.weight"], rules.eps)
        for row in taps.double().tolist()
    ]
    hidden = noise.double().tolist()
    positions = [first + slot for slot in range(len(hidden))]
    for layer in range(len(rules.windows)):
        hidden = _layer(weights, rules, layer, features, tap_positions, hidden, positions)
    return [_norm(row, weights["norm.weight"], rules.eps) for row in hidden]


def _layer(
    weights: dict[str, Any],
    rules: Rules,
    layer: int,
    features: list[Vector],
    tap_positions: list[int],
    hidden: list[Vector],
    positions: list[int],
) -> list[Vector]:
    def linear(name: str, row: Vector) -> Vector:
        out = _times(weights[f"layers.{layer}.{name}.weight"], row)
        bias = weights.get(f"layers.{layer}.{name}.bias")
        return out if bias is None else [value + shift for value, shift in zip(out, bias, strict=True)]

    def scale_of(name: str) -> Vector:
        return weights[f"layers.{layer}.{name}.weight"]

    def heads(row: Vector) -> list[Vector]:
        return [row[start : start + rules.head_dim] for start in range(0, len(row), rules.head_dim)]

    normed = [_norm(row, scale_of("input_layernorm"), rules.eps) for row in hidden]
    rows = [*features, *normed]  # context features are not normed again
    where = [*tap_positions, *positions]
    keys, values = [], []
    for row, position in zip(rows, where, strict=True):
        key_heads = [
            _norm(head, scale_of("self_attn.k_norm"), rules.eps) for head in heads(linear("self_attn.k_proj", row))
        ]
        keys.append([_rotate(head, position, rules) for head in key_heads])
        values.append(heads(linear("self_attn.v_proj", row)))
    result = []
    for row, before, position in zip(normed, hidden, positions, strict=True):
        query_heads = [
            _rotate(_norm(head, scale_of("self_attn.q_norm"), rules.eps), position, rules)
            for head in heads(linear("self_attn.q_proj", row))
        ]
        seen = [index for index, other in enumerate(where) if _sees(rules, layer, position, other)]
        mixed: Vector = []
        for number, query in enumerate(query_heads):
            group = number // (rules.heads // rules.kv_heads)
            mixed += _attend(query, [keys[i][group] for i in seen], [values[i][group] for i in seen])
        after = [a + b for a, b in zip(before, linear("self_attn.o_proj", mixed), strict=True)]
        inner = _norm(after, scale_of("post_attention_layernorm"), rules.eps)
        gate, up = linear("mlp.gate_proj", inner), linear("mlp.up_proj", inner)
        wide = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
        result.append([a + b for a, b in zip(after, linear("mlp.down_proj", wide), strict=True)])
    return result


def _sees(rules: Rules, layer: int, query: int, key: int) -> bool:
    window = rules.windows[layer]
    if rules.causal[layer] and key > query:
        return False
    return window is None or abs(query - key) < window


def _attend(query: Vector, keys: list[Vector], values: list[Vector]) -> Vector:
    scores = [_dot(query, key) / math.sqrt(len(query)) for key in keys]
    top = max(scores)
    shares = [math.exp(score - top) for score in scores]
    total = sum(shares)
    return [
        sum(share * value[index] for share, value in zip(shares, values, strict=True)) / total
        for index in range(len(values[0]))
    ]


def _rotate(head: Vector, position: int, rules: Rules) -> Vector:
    """Half-split rotary: dimension i turns with dimension i + half."""
    half = len(head) // 2
    amplitude = 1.0
    out = list(head)
    for index in range(half):
        frequency = rules.theta ** (-2 * index / len(head))
        if rules.yarn is not None:
            frequency = _yarn(frequency, index, half, rules)
            amplitude = 0.1 * math.log(rules.yarn[0]) + 1
        angle = position * frequency
        cos, sin = math.cos(angle) * amplitude, math.sin(angle) * amplitude
        out[index] = head[index] * cos - head[index + half] * sin
        out[index + half] = head[index + half] * cos + head[index] * sin
    return out


def _yarn(frequency: float, index: int, half: int, rules: Rules) -> float:
    """YaRN (arXiv 2309.00071): fast dimensions keep their frequency, slow ones are divided, with a ramp between."""
    assert rules.yarn is not None
    factor, original = rules.yarn

    def dimension(turns: float) -> float:
        return 2 * half * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rules.theta))

    low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), 2 * half - 1)
    slow = min(max((index - low) / max(high - low, 0.001), 0.0), 1.0)
    return frequency * (1 - slow) + frequency / factor * slow


def _norm(row: Vector, scale: Vector, eps: float) -> Vector:
    root = math.sqrt(sum(value * value for value in row) / len(row) + eps)
    return [value / root * weight for value, weight in zip(row, scale, strict=True)]


def _times(matrix: list[Vector], row: Vector) -> Vector:
    return [_dot(line, row) for line in matrix]


def _dot(left: Vector, right: Vector) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
