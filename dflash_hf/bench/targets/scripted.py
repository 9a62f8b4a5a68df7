"""A drafter that says what a script says, through the product's whole path.

Its network runs and is injected, the target's head is asked; only the answer is replaced. A random drafter accepts
nothing and so would hide nearly every fault; this one is right where it is told to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.heads.draft import Block, Draft
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.target.view import view_target

__all__ = ["PATTERNS", "ScriptedDrafter", "scripted_drafter"]

BLOCK = 8
PATTERNS: dict[str, Callable[[int], bool]] = {  # which places of the text are proposed wrongly
    "all accepted": lambda place: False,
    "none accepted": lambda place: True,
    "spoiled at places": lambda place: place % 3 == 0,
}


class _ScriptedHead(nn.Module):
    """Proposes the script's tokens from ``first`` on; their logits are the target's own, of whatever they say."""

    sequential = False
    script: Sequence[int] = ()
    spoil: Callable[[int], bool] = PATTERNS["all accepted"]
    first = 0

    def propose(self, block: Block, warp: Any = None) -> Draft:
        outputs = block.project(block.hidden_states)
        tokens = [self._token(self.first + slot, outputs.shape[-1]) for slot in range(outputs.shape[1])]
        return Draft(torch.tensor([tokens]), outputs, block.scale)

    def _token(self, place: int, columns: int) -> int:
        token = self.script[place] if place < len(self.script) else 0
        return (token + 1) % columns if self.spoil(place) else token


class ScriptedDrafter(DFlashDrafter):
    """Tells its head where the block stands."""

    def forward(self, noise_embeds: Tensor, *args: Any, **kwargs: Any) -> Any:
        # The anchor follows the rows of its context; its position may be another (PaliGemma counts from 1).
        self.head.first = kwargs["cache"].length + self.config.first_slot
        return super().forward(noise_embeds, *args, **kwargs)


def scripted_drafter(model: PreTrainedModel, script: Sequence[int], spoil: Callable[[int], bool]) -> ScriptedDrafter:
    """A small drafter for this target that proposes ``script`` (prompt included), wrong where ``spoil(place)``."""
    try:
        view = view_target(model)
        width, layers = view.hidden_size, view.num_layers
    except UnsupportedTargetError:  # any drafter will do: it is refused
        width, layers = 32, 4
    config = DFlashConfig(
        hidden_size=width, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, target_layer_ids=sorted({0, max(layers - 2, 0)}), block_size=BLOCK, mask_token_id=1,
    )  # fmt: skip
    torch.manual_seed(1)
    drafter = ScriptedDrafter(config).float().eval()
    head = _ScriptedHead()
    head.script, head.spoil = list(script), spoil
    drafter.head = head
    return drafter
