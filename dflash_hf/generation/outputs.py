"""What ``return_dict_in_generate`` asks for, token by token, as plain decoding would have produced it.

A verification reads K tokens in one forward; plain decoding reads them one by one and returns a tuple entry each. So
row ``j`` of what the forward returned becomes an entry, and of attentions only the columns plain decoding would have
had at that token: those up to it, within the layer's window. Entries: hidden states per layer [B, 1, D], attentions
per layer [B, H, 1, T].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.utils import GenerateDecoderOnlyOutput

from dflash_hf.target.state import CropState
from dflash_hf.trace import Trace

__all__ = ["DFlashOutput", "TokenOutputs", "join_rows"]


class DFlashOutput(GenerateDecoderOnlyOutput):
    """The host's output, key for key, and the trace beside it: ``output.trace`` is no entry of the mapping."""

    trace: Trace | None = None


class TokenOutputs:
    """Collects one row's hidden states and attentions; scores and logits are the acceptance's.

    Args:
        config: says what to collect; what is not asked for stays None.
        state: the target's memory, which knows its layers' windows.
    """

    def __init__(self, config: GenerationConfig, state: CropState) -> None:
        returned = bool(config.return_dict_in_generate)
        self.hidden_states: tuple[Any, ...] | None = () if returned and config.output_hidden_states else None
        self.attentions: tuple[Any, ...] | None = () if returned and config.output_attentions else None
        self._state = state
        self._asked: list[bool] = []  # of each hidden state, whether plain decoding returns it

    def add_prefill(self, outputs: Any) -> None:
        """The first token: everything the last forward of the prompt returned."""
        if self.hidden_states is not None:
            self.hidden_states += (outputs.hidden_states,)
            self._asked = [layer is not None for layer in outputs.hidden_states]
        if self.attentions is not None:
            self.attentions += (outputs.attentions,)

    def add(self, outputs: Any, past: int, count: int) -> None:
        """The first ``count`` tokens of a verification that stood on ``past`` cached ones."""
        if self.hidden_states is not None:
            self.hidden_states += tuple(self._hidden_states(outputs.hidden_states, row) for row in range(count))
        if self.attentions is not None:
            self.attentions += tuple(self._attentions(outputs.attentions, past + row + 1, row) for row in range(count))

    def _hidden_states(self, hidden_states: Sequence[Tensor | None], row: int) -> tuple[Tensor | None, ...]:
        """Row ``row`` of every layer [B, K, D]; None for those not asked for, though we may have for the taps."""
        return tuple(
            self._own(layer[..., row : row + 1, :]) if asked and layer is not None else None
            for layer, asked in zip(hidden_states, self._asked, strict=True)
        )

    def _attentions(self, attentions: Sequence[Tensor | None] | None, length: int, row: int) -> Any:
        """Row ``row`` of every layer's weights [B, H, K, T], as a forward of it alone at ``length`` has them."""
        if attentions is None:
            return None
        return tuple(
            None if layer is None else self._columns(layer, self._state.window_of(number), length, row)
            for number, layer in enumerate(attentions)
        )

    def _columns(self, weights: Tensor, window: int | None, length: int, row: int) -> Tensor:
        own = weights[:, :, row : row + 1]
        if self._state.static:
            return self._own(own)
        end = weights.shape[-1] - weights.shape[-2] + row + 1
        width = length if window is None else min(window, length)
        return own[..., end - width : end]

    def _own(self, part: Tensor) -> Tensor:
        """A compiled graph may write its next outputs where these are."""
        return part.clone() if self._state.static else part


def join_rows(rows: Sequence[Any]) -> Any:
    """The same nested tuples of tensors with B rows, from B of one row each; None stays None."""
    first = rows[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return torch.cat(list(rows), dim=0)
    return tuple(join_rows(parts) for parts in zip(*rows, strict=True))
