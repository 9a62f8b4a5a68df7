"""The maths of dialects known from descriptions, once more: loops over slots and heads in float64, from the survey.

Works on tensors by their names in the files, shares nothing with the package, has no cache and no batches: every block
is computed from all taps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Meaning:
    """What a checkpoint means, said by the test and not read from its config."""

    windows: Sequence[int | None]
    causal: bool = False
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 4
    theta: float = 1e7
    context_theta: float | None = None
    rotated: int | None = None  # leading dimensions of a head that are rotated
    pairs: int | None = None  # Gemma 4: pairs over the whole head that are rotated
    interleaved: bool = False
    eps: float = 1e-6
    value_scale: float = 1.0
    taps: str = "concat"  # or "normed", "gated"
    temperature: float = 1.0
    context_norm: bool = False
    gemma: bool = False
    first_slot: int = 1
    embedding_scale: float = 1.0
    softcap: float | None = None


def norm(row: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    root = row / math.sqrt(float((row * row).sum()) / len(row) + eps)
    return root if weight is None else root * weight


class Slow:
    """One drafter in loops."""

    def __init__(self, tensors: dict[str, Tensor], meaning: Meaning) -> None:
        self.weights = {name: tensor.double() for name, tensor in tensors.items()}
        self.means = meaning

    def logits(
        self, taps: Tensor, ids: list[int], first: int, embed: Tensor, head: Tensor, mask: tuple[int, Tensor] | None
    ) -> tuple[list[Tensor], list[int]]:
        """Logits of the proposing slots and the tokens chosen, the chain walked greedily.

        ``taps`` [C, L * width] of positions 0 to C - 1, ``ids`` of the block, which starts at ``first``.
        """
        means = self.means
        rows = [embed[token].double() * means.embedding_scale for token in ids]
        if mask is not None:
            rows = [mask[1].double() if token == mask[0] else row for token, row in zip(ids, rows, strict=True)]
        hidden = self.hidden(taps.double(), rows, first)[means.first_slot :]
        logits, chosen, before = [], [], ids[0]
        for row in hidden:
            scores = head.double() @ row
            if means.softcap is not None:
                scores = torch.tanh(scores / means.softcap) * means.softcap
            if "markov_head.markov_w1.weight" in self.weights:
                bias = self.weights["markov_head.markov_w1.weight"][before]
                scores = scores + self.weights["markov_head.markov_w2.weight"] @ bias
            logits.append(scores)
            column = int(scores.argmax())
            before = column + int(self.weights["d2t"][column]) if "d2t" in self.weights else column
            chosen.append(before)
        return logits, chosen

    def hidden(self, taps: Tensor, rows: list[Tensor], first: int) -> list[Tensor]:
        features = [self._feature(row) for row in taps]
        for layer in range(len(self.means.windows)):
            rows = self._layer(layer, features, rows, first)
        return [norm(row, self._whole("norm", "final_norm"), self.means.eps) for row in rows]

    def _whole(self, *names: str) -> Tensor:
        return next(self.weights[f"{name}.weight"] for name in names if f"{name}.weight" in self.weights)

    def _feature(self, row: Tensor) -> Tensor:
        means, eps = self.means, self.means.eps
        width = self._whole("hidden_norm", "context_norm").shape[0]
        pieces = [row[start : start + width] for start in range(0, len(row), width)]
        if means.taps == "normed":
            pieces = [norm(p, self.weights[f"aux_hidden_norms.{t}.weight"], eps) for t, p in enumerate(pieces)]
        if means.taps == "gated":
            shares = [math.exp(float(gate) / means.temperature) for gate in self.weights["layer_gate"]]
            mixed = torch.zeros(width, dtype=torch.float64)
            for t, piece in enumerate(pieces):
                share = shares[t] / sum(shares)
                mixed = mixed + share * norm(piece, self.weights[f"candidate_norms.{t}.weight"], eps)
            return norm(mixed, self._whole("context_norm"), eps)
        return norm(self._whole("fc") @ torch.cat(pieces), self._whole("hidden_norm"), eps)

    def _part(self, layer: int, name: str) -> Tensor | None:
        return self.weights.get(f"layers.{layer}.{name}")

    def _of(self, layer: int, name: str) -> Tensor:
        return self.weights[f"layers.{layer}.{name}"]

    def _projections(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys = self.means.heads * self.means.head_dim, self.means.kv_heads * self.means.head_dim
        fused = self._part(layer, "self_attn.qkv_proj.weight")
        if fused is not None:
            return fused[:queries], fused[queries : queries + keys], fused[queries + keys :]
        q, k = self._of(layer, "self_attn.q_proj.weight"), self._of(layer, "self_attn.k_proj.weight")
        v = self._part(layer, "self_attn.v_proj.weight")
        return q, k, k if v is None else v

    def _heads(self, row: Tensor) -> list[Tensor]:
        return [row[start : start + self.means.head_dim] for start in range(0, len(row), self.means.head_dim)]

    def _layer(self, layer: int, features: list[Tensor], rows: list[Tensor], first: int) -> list[Tensor]:
        means, eps = self.means, self.means.eps
        q_proj, k_proj, v_proj = self._projections(layer)
        before = self._of(layer, "input_layernorm.weight")
        normed = [norm(row, before, eps) for row in rows]
        context = [norm(row, before, eps) for row in features] if means.context_norm else features
        where = [*range(len(features)), *(first + slot for slot in range(len(rows)))]
        keys, values = [], []
        for index, (row, position) in enumerate(zip([*context, *normed], where, strict=True)):
            theta = means.context_theta if index < len(features) and means.context_theta else means.theta
            own = [norm(head, self._of(layer, "self_attn.k_norm.weight"), eps) for head in self._heads(k_proj @ row)]
            keys.append([self._rotated(head, position, theta) for head in own])
            seen = self._heads(v_proj @ row)
            values.append([norm(v, None, eps) if means.gemma else v * means.value_scale for v in seen])
        out = []
        for row, state, position in zip(normed, rows, where[len(features) :], strict=True):
            mixed = []
            for number, head in enumerate(self._heads(q_proj @ row)):
                query = norm(head, self._of(layer, "self_attn.q_norm.weight"), eps)
                query = self._rotated(query, position, means.theta)
                group = number // (means.heads // means.kv_heads)
                mixed.append(self._attended(layer, number, query, position, where, keys, values, group))
            attended = self._of(layer, "self_attn.o_proj.weight") @ torch.cat(self._gated(layer, row, mixed))
            out.append(self._finished(layer, state, attended))
        return out

    def _attended(
        self,
        layer: int,
        number: int,
        query: Tensor,
        position: int,
        where: list[int],
        keys: list[list[Tensor]],
        values: list[list[Tensor]],
        group: int,
    ) -> Tensor:
        means = self.means
        scale = 1.0 if means.gemma else 1 / math.sqrt(means.head_dim)
        seen = [index for index, other in enumerate(where) if self._sees(layer, position, other)]
        scores = [float(query @ keys[index][group]) * scale for index in seen]
        sinks = self._part(layer, "self_attn.attention_sink_bias")
        extra = [] if sinks is None else [float(sinks[number])]
        top = max([*scores, *extra])
        total = sum(math.exp(score - top) for score in [*scores, *extra])
        mixed = torch.zeros(means.head_dim, dtype=torch.float64)
        for index, score in zip(seen, scores, strict=True):
            mixed = mixed + math.exp(score - top) / total * values[index][group]
        return mixed

    def _sees(self, layer: int, query: int, key: int) -> bool:
        window = self.means.windows[layer]
        if self.means.causal and key > query:
            return False
        return window is None or abs(query - key) < window

    def _gated(self, layer: int, row: Tensor, mixed: list[Tensor]) -> list[Tensor]:
        gate = self._part(layer, "self_attn.g_proj.weight")
        if gate is None:
            return mixed
        gates = torch.log1p(torch.exp(gate @ row))
        if len(gates) == len(mixed):
            return [head * share for head, share in zip(mixed, gates, strict=True)]
        return [head * share for head, share in zip(mixed, self._heads(gates), strict=True)]

    def _finished(self, layer: int, state: Tensor, attended: Tensor) -> Tensor:
        eps = self.means.eps
        gate, up, down = (self._of(layer, f"mlp.{name}_proj.weight") for name in ("gate", "up", "down"))
        activation: Callable[[Tensor], Tensor] = torch.nn.functional.silu
        if not self.means.gemma:
            state = state + attended
            inner = norm(state, self._of(layer, "post_attention_layernorm.weight"), eps)
            return state + down @ (activation(gate @ inner) * (up @ inner))
        state = state + norm(attended, self._of(layer, "post_attention_layernorm.weight"), eps)
        inner = norm(state, self._of(layer, "pre_feedforward_layernorm.weight"), eps)
        opened = gate @ inner
        opened = 0.5 * opened * (1 + torch.tanh(math.sqrt(2 / math.pi) * (opened + 0.044715 * opened**3)))
        wide = norm(down @ (opened * (up @ inner)), self._of(layer, "post_feedforward_layernorm.weight"), eps)
        return (state + wide) * self._of(layer, "layer_scalar")

    def _rotated(self, head: Tensor, position: int, theta: float) -> Tensor:
        """Pairs turn by ``position * theta ** (-2 i / width)``; which two make a pair depends on the layout."""
        means = self.means
        width = means.rotated or means.head_dim
        out = head.clone()
        for index in range(width // 2 if means.pairs is None else means.pairs):
            angle = position * theta ** (-2 * index / width)
            low, high = (2 * index, 2 * index + 1) if means.interleaved else (index, index + width // 2)
            out[low] = head[low] * math.cos(angle) - head[high] * math.sin(angle)
            out[high] = head[high] * math.cos(angle) + head[low] * math.sin(angle)
        return out
