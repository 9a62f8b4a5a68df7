"""A drafter of any dialect, drafting the slow way: everything from the target's hidden states and a raw checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.checkpoints.reference.arithmetic import Matrix, Vector, norm, softmax
from tests.checkpoints.reference.block import Rules, Weights, run_layers
from tests.checkpoints.reference.heads import Row, Slots, Walk, parallel


@dataclass(frozen=True)
class SlowTarget:
    """What a drafter borrows."""

    rows: Matrix  # [V, D] of the embedding
    head: Matrix  # [V, D]
    embedding_scale: float = 1.0  # of its embedding module
    factor: float = 1.0  # between that and its first layer
    multiplier: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True)
class Run:
    """What the target put out along a text: ``states[i][position]`` is the host's ``hidden_states[i]``."""

    ids: list[int]
    states: list[Matrix]
    raw_last: Matrix  # of the last layer, before the final norm

    def tap(self, state: int, position: int, *, raw: bool) -> Vector:
        last = raw and state == len(self.states) - 1
        return self.raw_last[position] if last else self.states[state][position]


@dataclass(frozen=True)
class SlowDrafter:
    """What a checkpoint means."""

    weights: Weights  # body under z-lab's names
    rules: Rules
    block: int
    mask: int
    states: list[int]  # which hidden_states are tapped
    first: int  # the first slot that proposes
    drafts: int
    fuse: Callable[[list[Vector]], list[Vector]]  # taps of one position -> its feature for every layer
    walk: Walk = parallel
    raw_last: bool = False
    embedding: str = "scaled"  # "scaled", "module" (what scales lies in it), "rows" or "own"
    embedding_scale: float = 1.0
    multiplier: float | None = None  # None: the target's, if its head is borrowed
    softcap: float | None = None
    columns: list[int] | None = None  # the target's ids of the own head's rows
    borrows_scale: bool = True  # the target's multiplier and soft cap, where the drafter's are None

    def embed(self, target: SlowTarget, token: int) -> Vector:
        if self.embedding == "own":
            return self.weights["embed_tokens.weight"][token]
        inside, around = target.embedding_scale, target.factor
        scale = {"scaled": inside * around, "module": inside, "rows": 1.0}[self.embedding]
        return target.rows[token] * scale * self.embedding_scale

    def logits(self, target: SlowTarget, hidden: Vector) -> Vector:
        own = "lm_head.weight" in self.weights
        out = (self.weights["lm_head.weight"] if own else target.head) @ hidden
        inherits = self.borrows_scale and not own
        multiplier = self.multiplier or (target.multiplier if inherits else 1.0)
        softcap = self.softcap or (target.softcap if inherits else None)
        out = out * multiplier
        return out if softcap is None else softcap * np.tanh(out / softcap)

    def draft(self, target: SlowTarget, run: Run, position: int) -> tuple[list[Row], list[int]]:
        """Rows of logits and greedy ids after the anchor, which is the text's token at ``position``."""
        features = []
        for place in range(position):
            features.append(self.fuse([run.tap(state, place, raw=self.raw_last) for state in self.states]))
        noise = [self.embed(target, run.ids[position])]
        noise += [self.embed(target, self.mask)] * (self.block - 1)
        hidden = run_layers(self.weights, self.rules, features, list(range(position)), noise, position)
        return self.walk(
            Slots(
                hidden[self.first : self.first + self.drafts],
                self.first,
                run.ids[position],
                lambda state: self.logits(target, state),
                self.columns or list(range(len(target.head))),
                lambda token: self.embed(target, token),
                hidden[: self.first],
            )
        )


def concat(weights: Weights, eps: float, layers: int, adapter: Matrix | None = None) -> Callable[..., list[Vector]]:
    """fc over the taps side by side, each through one adapter if there is one, then the norm; for all layers."""

    def fuse(taps: list[Vector]) -> list[Vector]:
        pieces = taps if adapter is None else [adapter @ tap for tap in taps]
        return [norm(weights["fc.weight"] @ np.concatenate(pieces), weights["hidden_norm.weight"], eps)] * layers

    return fuse


def mixed(weights: Weights, eps: float, mix: Matrix) -> Callable[..., list[Vector]]:
    """A mix of the taps for each layer, beside fc's where there is one (DFly; DFlare has none)."""

    def fuse(taps: list[Vector]) -> list[Vector]:
        base = weights["fc.weight"] @ np.concatenate(taps) if "fc.weight" in weights else 0.0
        out = []
        for row in mix:
            total = base + sum(share * tap for share, tap in zip(softmax(row), taps, strict=True))
            out.append(norm(total, weights["hidden_norm.weight"], eps))
        return out

    return fuse
