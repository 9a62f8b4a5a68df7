"""From hidden states of the proposing slots to rows of logits and ids: one walk a head, as the survey words it.

Every walk takes ``Slots`` and gives rows of scores with the ids they are of, and the greedy ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.checkpoints.reference.arithmetic import Matrix, Vector, norm, sigmoid, silu

Row = dict[int, float]  # target's id -> the drafter's logit


@dataclass(frozen=True)
class Slots:
    """What a head works from."""

    hidden: list[Vector]  # of the proposing slots, after the final norm
    first: int  # the first proposing slot: 0 is the anchor's
    anchor: int  # id
    logits: Callable[[Vector], Vector]  # LM head, multiplier and soft cap
    ids: list[int]  # of the head's columns
    embed: Callable[[int], Vector]  # as the block's own slots
    skipped: list[Vector] = field(default_factory=list)  # hidden states of the slots before the first


Walk = Callable[[Slots], tuple[list[Row], list[int]]]


def _walk(slots: Slots, logits_of: Callable[[int, Vector, int], Vector]) -> tuple[list[Row], list[int]]:
    """``logits_of(number of the slot in the block, its hidden state, the token before it)``."""
    before, rows, picked = slots.anchor, [], []
    for number, hidden in enumerate(slots.hidden, start=slots.first):
        scores = logits_of(number, hidden, before)
        before = slots.ids[int(np.argmax(scores))]
        rows.append(dict(zip(slots.ids, scores.tolist(), strict=True)))
        picked.append(before)
    return rows, picked


def parallel(slots: Slots) -> tuple[list[Row], list[int]]:
    return _walk(slots, lambda number, hidden, before: slots.logits(hidden))


def markov(w: Mapping[str, Matrix], kind: str) -> Walk:
    """DSpark. ``w``: markov_w1, markov_w2, gate_proj or joint_proj."""

    def walk(slots: Slots) -> tuple[list[Row], list[int]]:
        rank = w["markov_w1.weight"].shape[1]
        state = [np.zeros(rank)]

        def logits_of(number: int, hidden: Vector, before: int) -> Vector:
            e = w["markov_w1.weight"][before]
            if kind == "gated":  # hidden first
                e = sigmoid(w["gate_proj.weight"] @ np.concatenate([hidden, e]) + w["gate_proj.bias"]) * e
            elif kind == "rnn":  # state, embedding, hidden
                z = w["joint_proj.weight"] @ np.concatenate([state[0], e, hidden]) + w["joint_proj.bias"]
                g, c, o = z[:rank], z[rank : 2 * rank], z[2 * rank :]
                state[0] = sigmoid(g) * state[0] + (1 - sigmoid(g)) * np.tanh(c)
                e = np.tanh(o)
            return slots.logits(hidden) + w["markov_w2.weight"] @ e

        for hidden in slots.skipped:  # trained with the anchor before them; only a recurrent state carries on
            logits_of(-1, hidden, slots.anchor)
        return _walk(slots, logits_of)

    return walk


def gru(w: Mapping[str, Matrix], shifted: bool, prefix: int) -> Walk:
    """Domino. A slot that predicts block token n follows the state after tokens 0 to n - 1."""

    def step(state: Vector, x: Vector) -> Vector:
        size = len(state)
        i, h = w["prefix_gru.weight_ih_l0"] @ x, w["prefix_gru.weight_hh_l0"] @ state
        reset, update = sigmoid(i[:size] + h[:size]), sigmoid(i[size : 2 * size] + h[size : 2 * size])
        return (1 - update) * np.tanh(i[2 * size :] + reset * h[2 * size :]) + update * state

    def walk(slots: Slots) -> tuple[list[Row], list[int]]:
        state = [np.zeros(w["prefix_gru.weight_hh_l0"].shape[1])]

        def logits_of(number: int, hidden: Vector, before: int) -> Vector:
            state[0] = step(state[0], slots.embed(before))
            if number < (prefix if shifted else 1 + prefix):
                return slots.logits(hidden)
            inner = silu(w["embed_proj.0.weight"] @ np.concatenate([hidden, state[0]]))
            return slots.logits(hidden) + w["embed_proj.2.weight"] @ inner

        return _walk(slots, logits_of)

    return walk


def fly(w: Mapping[str, Matrix], eps: float) -> Walk:
    """DFly's hidden correction."""

    def walk(slots: Slots) -> tuple[list[Row], list[int]]:
        def logits_of(number: int, hidden: Vector, before: int) -> Vector:
            parts = norm(hidden, w["hidden_norm.weight"], eps), norm(slots.embed(before), w["embed_norm.weight"], eps)
            both = np.concatenate(parts)
            mixed = silu(w["gate_proj.weight"] @ both) * (w["up_proj.weight"] @ both)
            return slots.logits(hidden + w["down_proj.weight"] @ mixed)

        return _walk(slots, logits_of)

    return walk


def selector(w: Mapping[str, Any], top_k: int) -> Walk:
    """DFlash 2: among the best ``top_k`` of each slot, by unary + <A[before] * (W h), B[candidate]>."""

    def walk(slots: Slots) -> tuple[list[Row], list[int]]:
        before, rows, picked = slots.anchor, [], []
        for hidden in slots.hidden:
            unary = slots.logits(hidden)
            best = sorted(range(len(unary)), key=lambda column: -unary[column])[:top_k]
            reading = w["predecessor_codebook"][before] * (w["hidden_projection.weight"] @ hidden)
            row = {
                slots.ids[column]: float(unary[column] + reading @ w["successor_codebook"][slots.ids[column]])
                for column in best
            }
            before = max(row, key=lambda token: row[token])
            rows.append(row)
            picked.append(before)
        return rows, picked

    return walk
