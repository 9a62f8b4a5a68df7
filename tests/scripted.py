"""Drafters that propose what a script says, through the product's whole path: only their hidden states are replaced.

A random drafter accepts nothing and so hides nearly every fault; these accept all, none, or some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.context import GrowingContext
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.target.view import view_target


def tiny_config(target: PreTrainedModel, **changes: object) -> DFlashConfig:
    """A two-layer drafter of the target's width."""
    text = target.config.get_text_config()
    values: dict[str, object] = {
        "hidden_size": text.hidden_size,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "target_layer_ids": [0, 2],
        "block_size": 8,
        "mask_token_id": 1,
    }
    return DFlashConfig(**{**values, **changes})


class ScriptedContext(GrowingContext):
    """Knows which script belongs to it: rows are decoded one after another, each with a context of its own."""

    script: list[int]


class ScriptedDrafter(DFlashDrafter):
    """Runs the real network, so that injection and shapes are exercised, then answers by script."""

    head_rows: Tensor
    scripts: list[list[int]]
    spoil: Callable[[int], bool]
    sharpness: float = 30.0  # how sure it is of its script; low values give every token a chance
    calls: int
    contexts: int

    def new_context(self) -> ScriptedContext:
        context = ScriptedContext(self.config.context_windows)
        context.script = self.scripts[self.contexts % len(self.scripts)]
        self.contexts += 1
        return context

    def forward(self, noise_embeds, context_hidden_states=None, attention_mask=None, position_ids=None, cache=None):
        super().forward(noise_embeds, context_hidden_states, attention_mask, position_ids, cache)
        self.calls += 1
        anchor = int(position_ids[0, -noise_embeds.shape[1]])
        ids = [self._token(cache.script, anchor + slot) for slot in range(noise_embeds.shape[1])]
        rows = self.head_rows[ids]
        return BaseModelOutput(last_hidden_state=self.sharpness * (rows / rows.norm(dim=-1, keepdim=True))[None])

    def _token(self, script: list[int], place: int) -> int:
        token = script[place] if place < len(script) else 0
        return (token + 1) % len(self.head_rows) if self.spoil(place) else token


@torch.no_grad()
def head_rows(target: PreTrainedModel) -> Tensor:
    """Rows [V, D] of the target's head, asked for by calling it: it may be quantised, wrapped or offloaded."""
    view = view_target(target)
    unit = torch.eye(view.hidden_size, dtype=target.dtype)
    return (view.project(unit) - view.project(torch.zeros_like(unit[:1]))).T.contiguous()


def scripted(
    target: PreTrainedModel,
    script: Tensor | Sequence[int] | Sequence[Tensor],
    spoil: Callable[[int], bool] = lambda place: False,
    **changes,
) -> ScriptedDrafter:
    """A drafter for ``target`` that proposes ``script`` (prompt included), wrong where ``spoil(place)``.

    With several rows, ``script`` is a list of one tensor a row, in the order in which rows are decoded.
    """
    torch.manual_seed(1)
    drafter = ScriptedDrafter(tiny_config(target, **changes)).to(target.dtype).eval()
    drafter.head_rows = head_rows(target)
    several = not isinstance(script, Tensor) and len(script) > 0 and isinstance(script[0], Tensor)
    rows = script if several else [script]
    drafter.scripts = [row.flatten().tolist() if isinstance(row, Tensor) else list(row) for row in rows]
    drafter.spoil, drafter.calls, drafter.contexts = spoil, 0, 0
    return drafter
