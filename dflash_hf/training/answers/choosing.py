"""Which token each row of a batch goes on with: the likeliest, or one drawn with the row's own random numbers.

In: logits [B, V] and which rows they belong to. Out: token ids [B]. A row draws one uniform number a token from a
generator of its own, so that what it says does not hang on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

from dflash_hf.errors import OptionsError

__all__ = ["Choosing"]

_AT_ONCE = 32  # rows whose probabilities over the vocabulary are in memory at a time, in double precision


class Choosing:
    """How rows are decoded.

    Args:
        temperatures: one a row; 0 is greedy.
        top_p: the smallest set of tokens with this much probability is drawn from; 1 is all.
        seeds: one a row; not needed when every row is greedy.

    Raises:
        OptionsError: a temperature is negative, top_p is not above 0 and at most 1, or rows that are drawn lack seeds.
    """

    def __init__(self, temperatures: Sequence[float], top_p: float, seeds: Sequence[int] | None) -> None:
        if min(temperatures) < 0:
            raise OptionsError(f"a temperature cannot be negative, got {min(temperatures)}")
        if not 0 < top_p <= 1:
            raise OptionsError(f"top_p must be above 0 and at most 1, got {top_p}")
        drawn = {row: temperature for row, temperature in enumerate(temperatures) if temperature > 0}
        if drawn and (seeds is None or len(seeds) != len(temperatures)):
            raise OptionsError("rows with a temperature above 0 need seeds, one a row")
        self._temperatures, self._top_p = drawn, top_p
        self._generators = {row: torch.Generator().manual_seed(seeds[row]) for row in drawn} if seeds else {}

    def tokens(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        """Token ids [B] from logits [B, V] of ``rows``; every call draws once for each row that is drawn."""
        chosen: Tensor = logits.argmax(dim=-1)
        for temperature in sorted({self._temperatures[row] for row in rows if row in self._temperatures}):
            slots = [slot for slot, row in enumerate(rows) if self._temperatures.get(row) == temperature]
            for first in range(0, len(slots), _AT_ONCE):
                part = slots[first : first + _AT_ONCE]
                chosen[part] = self._draw(logits[part], [rows[slot] for slot in part], temperature)
        return chosen.tolist()

    def _draw(self, logits: Tensor, rows: Sequence[int], temperature: float) -> Tensor:
        """Ids [b] by inverse transform: the first token whose cumulated probability exceeds the uniform number."""
        scores = TemperatureLogitsWarper(float(temperature))(None, logits.float())
        if self._top_p < 1:
            scores = TopPLogitsWarper(self._top_p)(None, scores)
        cumulated = scores.softmax(dim=-1).double().cumsum(dim=-1)
        total = cumulated[:, -1:].contiguous()
        drawn = [torch.rand(1, dtype=torch.float64, generator=self._generators[row]) for row in rows]
        numbers = torch.stack(drawn).to(logits.device)
        found = torch.searchsorted(cumulated, (numbers * total).contiguous(), right=True)
        last = torch.searchsorted(cumulated, total)  # were the product rounded up to the total
        return torch.minimum(found, last)[:, 0]
