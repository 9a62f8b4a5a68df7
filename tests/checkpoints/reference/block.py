"""A block through a drafter's layers, in loops over layers, slots and heads. No cache: all from all context rows.

In: weights under z-lab's names and what the checkpoint means. Out: hidden states after the final norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tests.checkpoints.reference.arithmetic import Matrix, Rope, Vector, attend, norm, rotate, silu

Weights = Mapping[str, Matrix]


@dataclass(frozen=True)
class Rules:
    """What a checkpoint means. ``counting`` says which keys a window of W shows:

    "query": less than W away; "inclusive": up to W away; "context": context rows less than W away, the block whole;
    "anchor": the W context rows before the anchor, the block whole.
    """

    windows: Sequence[int | None]  # per layer
    causal: Sequence[bool]  # per layer: a slot sees itself and earlier slots of the block
    heads: int
    kv_heads: int
    head_dim: int
    theta: float
    eps: float = 1e-6
    yarn: tuple[float, int] | None = None  # factor, original length
    counting: str = "query"

    @property
    def rope(self) -> Rope:
        return Rope(self.theta, self.yarn)

    def sees(self, layer: int, query: int, key: int, anchor: int) -> bool:
        """Whether the slot at position ``query`` sees ``key``; positions from ``anchor`` on are the block."""
        window, in_block = self.windows[layer], key >= anchor
        if self.causal[layer] and key > query:
            return False
        if window is None:
            return True
        if self.counting == "query":
            return abs(query - key) < window
        if self.counting == "inclusive":
            return abs(query - key) <= window
        if in_block:
            return True
        return key > query - window if self.counting == "context" else key >= anchor - window


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Matrix]:
    """Tensors as arrays of float64."""
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


def slow_block(
    tensors: Mapping[str, Tensor], rules: Rules, taps: Tensor, tap_positions: list[int], noise: Tensor, first: int
) -> list[list[float]]:
    """DFlash v1: every layer has the same features. ``taps`` [C, L * width], ``noise`` [K, width]."""
    weights = plain(tensors)
    rows = taps.double().numpy()
    features = [norm(weights["fc.weight"] @ row, weights["hidden_norm.weight"], rules.eps) for row in rows]
    spread = [[feature] * len(rules.windows) for feature in features]
    hidden = run_layers(weights, rules, spread, tap_positions, list(noise.double().numpy()), first)
    return [row.tolist() for row in hidden]


def run_layers(
    weights: Weights,
    rules: Rules,
    features: list[list[Vector]],  # of each context row, for each layer
    tap_positions: list[int],
    noise: list[Vector],  # embeddings of the slots
    anchor: int,  # the first slot's position
) -> list[Vector]:
    """Hidden states of the slots."""
    hidden = noise
    for layer in range(len(rules.windows)):
        own = {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items()}
        context = [row[layer] for row in features]
        hidden = _attention(own, rules, layer, context, tap_positions, hidden, anchor)
        hidden = _mlp(own, rules, hidden)
    return [norm(row, weights["norm.weight"], rules.eps) for row in hidden]


def _linear(weights: Weights, name: str, row: Vector) -> Vector:
    out = weights[f"{name}.weight"] @ row
    return out + weights[f"{name}.bias"] if f"{name}.bias" in weights else out


def _attention(
    weights: Weights,
    rules: Rules,
    layer: int,
    context: list[Vector],
    tap_positions: list[int],
    hidden: list[Vector],
    anchor: int,
) -> list[Vector]:
    normed = [norm(row, weights["input_layernorm.weight"], rules.eps) for row in hidden]
    slots = _convolved(weights, "attention_conv", 0, normed, normed)
    keys, values, where = [], [], []
    for row, position in zip(context, tap_positions, strict=True):  # features are not normed again
        suffix = "_target" if "self_attn.k_proj_target.weight" in weights else ""
        keys.append(_keys(weights, rules, f"k_proj{suffix}", row, position))
        values.append(_heads(rules, _linear(weights, f"self_attn.v_proj{suffix}", row)))
        where.append(position)
    for slot, row in enumerate(slots):
        keys.append(_keys(weights, rules, "k_proj", row, anchor + slot))
        values.append(_heads(rules, _linear(weights, "self_attn.v_proj", row)))
        where.append(anchor + slot)
    mixed = []
    for slot, row in enumerate(slots):
        seen = [place for place, key in enumerate(where) if rules.sees(layer, anchor + slot, key, anchor)]
        out = []
        for number, head in enumerate(_heads(rules, _linear(weights, "self_attn.q_proj", row))):
            query = rotate(norm(head, weights["self_attn.q_norm.weight"], rules.eps), anchor + slot, rules.rope)
            group = number // (rules.heads // rules.kv_heads)
            out.append(attend(query, [keys[place][group] for place in seen], [values[place][group] for place in seen]))
        mixed.append(_linear(weights, "self_attn.o_proj", np.concatenate(out)))
    mixed = _convolved(weights, "attention_conv", 1, normed, mixed)
    return [before + added for before, added in zip(hidden, mixed, strict=True)]


def _mlp(weights: Weights, rules: Rules, hidden: list[Vector]) -> list[Vector]:
    normed = [norm(row, weights["post_attention_layernorm.weight"], rules.eps) for row in hidden]
    out = []
    for row in _convolved(weights, "mlp_conv", 0, normed, normed):
        wide = silu(_linear(weights, "mlp.gate_proj", row)) * _linear(weights, "mlp.up_proj", row)
        out.append(_linear(weights, "mlp.down_proj", wide))
    out = _convolved(weights, "mlp_conv", 1, normed, out)
    return [before + added for before, added in zip(hidden, out, strict=True)]


def _heads(rules: Rules, row: Vector) -> list[Vector]:
    return [row[start : start + rules.head_dim] for start in range(0, len(row), rules.head_dim)]


def _keys(weights: Weights, rules: Rules, projection: str, row: Vector, position: int) -> list[Vector]:
    scale = weights["self_attn.k_norm.weight"]
    heads = _heads(rules, _linear(weights, f"self_attn.{projection}", row))
    return [rotate(norm(head, scale, rules.eps), position, rules.rope) for head in heads]


def _convolved(weights: Weights, name: str, side: int, normed: list[Vector], rows: list[Vector]) -> list[Vector]:
    """DFlash 2: side 0 before the sublayer, 1 after it; the deltas of both come from the normed input."""
    if f"{name}.base_kernel" not in weights:
        return rows
    base = weights[f"{name}.base_kernel"][side]  # [taps, width]
    taps, width = base.shape
    out = []
    for slot, source in enumerate(normed):
        deltas = (weights[f"{name}.kernel_projection.weight"] @ source).reshape(2, taps, -1)[side]
        group = width // deltas.shape[1]
        row = np.zeros(width)
        for tap in range(min(taps, slot + 1)):
            for channel in range(width):
                row[channel] += (base[tap, channel] + deltas[tap, channel // group]) * rows[slot - tap][channel]
        out.append(row)
    return out
