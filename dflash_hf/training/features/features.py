"""What a drafter reads of its target: the features of a document, computed when they are asked for.

In: documents. Out: for each, the tapped layers of every token but the last (whose successor nobody knows), equal to the
host's ``hidden_states[i + 1]`` of a forward over this document alone; on demand the state that the target's head reads.
Shapes: B documents of a batch, S tokens of a document, L taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Protocol

import torch
from torch import Tensor

from dflash_hf.errors import TrainingError
from dflash_hf.target.positions import frequencies_change, position_limit
from dflash_hf.target.taps import TapRecorder
from dflash_hf.target.view import TargetView
from dflash_hf.training.documents import Document

__all__ = ["FeatureSource", "Features", "OnTheFly", "length_batches", "recorded_layers"]


@dataclass(frozen=True, slots=True)
class Features:
    """Of one document. The dtype is the stored one (bfloat16) or the target's."""

    taps: Tensor  # [S - 1, L * width], in the drafter's layer order
    final: Tensor | None  # [S - 1, width]: after the target's final norm, the teacher of KL losses


class FeatureSource(Protocol):
    """Where the features of documents come from; results stand in the order of the documents."""

    def of(self, documents: Sequence[Document]) -> list[Features]: ...


def length_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Places grouped by like length, so that each group padded to its longest has at most ``batch_tokens`` tokens.

    A document longer than that stands alone.

    >>> length_batches([5, 2, 9, 3], batch_tokens=10)
    [[1, 3], [0], [2]]
    """
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        if batches and (len(batches[-1]) + 1) * lengths[place] <= batch_tokens:
            batches[-1].append(place)
        else:
            batches.append([place])
    return batches


def recorded_layers(view: TargetView, layer_ids: Sequence[int], final: bool) -> list[int]:
    """The layers to tap: those asked for, and the last one for the final state, whose tap comes after the norm.

    Raises:
        TrainingError: the target lacks a layer.
    """
    last = view.num_layers - 1
    if outside := sorted({layer for layer in layer_ids if not 0 <= layer <= last}):
        raise TrainingError(
            f"layers {', '.join(map(str, outside))} are asked for, {view.public_name} has layers 0 to {last}"
        )
    layers = list(layer_ids)
    return [*layers, last] if final and last not in layers else layers


class OnTheFly:
    """Runs the target over the documents, without its head and without gradients.

    Args:
        view: the target, in evaluation mode.
        layer_ids: tapped layers, in the drafter's order.
        final: whether the final state is wanted too.
        batch_tokens: most tokens of a forward, padding included.

    Raises:
        TrainingError: the target lacks a layer.
    """

    def __init__(
        self, view: TargetView, layer_ids: Sequence[int], *, final: bool = False, batch_tokens: int = 8192
    ) -> None:
        assert not view.model.training, "dropout would spoil the features"
        self.view = view
        self.layer_ids = list(layer_ids)
        self.final = final
        self.batch_tokens = batch_tokens
        self._recorded = recorded_layers(view, layer_ids, final)
        self._no_cache = {"use_cache": False} if "use_cache" in signature(view.decoder.forward).parameters else {}

    @torch.no_grad()
    def of(self, documents: Sequence[Document]) -> list[Features]:
        """Features on the target's device, in its dtype.

        Raises:
            TrainingError: a document of less than two tokens, or longer than the target's table of positions.
        """
        for document in documents:
            self._refuse(document)
        found: dict[int, Features] = {}
        for batch in self._batches([len(document.ids) - 1 for document in documents]):
            features = self._forward([documents[place].ids[:-1] for place in batch])
            found.update(zip(batch, features, strict=True))
        return [found[place] for place in range(len(documents))]

    def _batches(self, lengths: list[int]) -> list[list[int]]:
        """The host picks rotary frequencies by the longest row of a batch: where they change, each row runs alone."""
        together: list[int] = []
        alone: list[int] = []
        for place, length in enumerate(lengths):
            (alone if frequencies_change(self.view.text_config, length) else together).append(place)
        batches = length_batches([lengths[place] for place in together], self.batch_tokens)
        return [[together[place] for place in batch] for batch in batches] + [[place] for place in alone]

    def _forward(self, rows: list[Tensor]) -> list[Features]:
        """One forward of rows padded on the right: causal attention keeps the padding out of every real token.

        Positions are left to the host: for such rows its own are the right ones, whatever they are made of.
        """
        lengths = [len(row) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        real = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
        device = self.view.device
        mask = None if bool(real.all()) else real.long().to(device)
        if frequencies_change(self.view.text_config, ids.shape[1]):
            # The host's dynamic frequencies stay those of the longest forward until a short one sets them back.
            self.view.decoder(input_ids=ids[:, :1].to(device), **self._no_cache)
        caught: list[Tensor] = []
        with TapRecorder(self.view, self._recorded).listen(lambda taps, _positions: caught.append(taps)):
            self.view.decoder(input_ids=ids.to(device), attention_mask=mask, **self._no_cache)
        (taps,) = caught  # [B, S - 1, recorded * width]
        return [self._split(row[:length]) for row, length in zip(taps, lengths, strict=True)]

    def _split(self, recorded: Tensor) -> Features:
        width, last = self.view.hidden_size, self.view.num_layers - 1
        final = None
        if self.final:
            final = recorded[:, self._recorded.index(last) * width :][:, :width]
        return Features(recorded[:, : len(self.layer_ids) * width], final)

    def _refuse(self, document: Document) -> None:
        length, text = len(document.ids) - 1, self.view.text_config
        if length < 1:
            raise TrainingError(f"document {document.id} has {length + 1} tokens; it takes a prompt and an answer")
        limit = position_limit(text)
        if limit is not None and length > limit and not frequencies_change(text, length):
            raise TrainingError(
                f"document {document.id} has {length + 1} tokens, {self.view.public_name} has positions for {limit}; "
                "make shorter answers"
            )
