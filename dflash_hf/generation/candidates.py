"""``DFlashCandidateGenerator``: the drafting engine, with two doors.

* our loop: :meth:`inject` what the target has verified, :meth:`propose` a block;
* transformers' own assisted loop: ``get_candidates``, called by the host with the target's outputs
  (``generate(..., assistant_model=drafter, speculation_type="dflash")`` on an attached model).

Shapes: B = 1 row, C context tokens, K slots, J drafted tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.generation.candidate_generator import CandidateGenerator

from dflash_hf.drafter.context import GrowingContext
from dflash_hf.drafter.heads.draft import Block, Draft, scaled_logits
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import UnsupportedCallError
from dflash_hf.generation.clock import RoundClock
from dflash_hf.target.logits import drafter_scale
from dflash_hf.target.taps import RAW_LAST, reads_raw_last
from dflash_hf.target.trained import drafts_well_up_to, warn_past_trained
from dflash_hf.target.view import TargetView

__all__ = ["DFlashCandidateGenerator"]


class DFlashCandidateGenerator(CandidateGenerator):
    """Drafts for one row of one call of ``generate``; holds that row's drafter context and nothing else.

    Args:
        drafter: the network; used in its own dtype and on its own device, tensors are moved at the borders.
        view: the target, for its embedding and head.
        max_length: total length of the sequence, prompt included; the host's door needs it.
        max_draft_tokens: cap on J, or None.
        clock: where to note the time of the drafter and of the head.
        context: what the drafter knows of the conversation already; new by default.
        least_confidence: where a head that has a confidence head ends its draft (``DFlashOptions``).
    """

    requires_model_outputs = True
    model_kwargs_overrides = {"output_hidden_states": True}

    def __init__(
        self,
        drafter: DFlashDrafter,
        view: TargetView,
        *,
        max_length: int | None = None,
        max_draft_tokens: int | None = None,
        clock: RoundClock | None = None,
        context: GrowingContext | None = None,
        least_confidence: float = 0.0,
    ) -> None:
        config = drafter.config
        self.drafter, self.view = drafter, view
        self.context = context if context is not None else drafter.new_context()
        offered = config.num_draft_tokens
        self.most: int = offered if max_draft_tokens is None else min(max_draft_tokens, offered)
        self._max_length, self._least_confidence = max_length, least_confidence
        self._clock = clock if clock is not None else RoundClock(drafter.device)
        self._shortens = all(config.layer_causal)  # a causal block's slots do not depend on later ones
        self._warned_from = drafts_well_up_to(view, drafter, self.context.window)
        self._masks = torch.full((1, config.block_size - 1), config.mask_token_id, device=drafter.device)

    def inject(self, taps: Tensor, position_ids: Tensor) -> None:
        """Let the drafter know of verified tokens: taps [1, C, L * width] at their positions [1, C]."""
        if not taps.shape[1]:
            return
        drafter = self.drafter
        with self._clock.phase("drafter"), torch.no_grad():
            drafter.inject(taps.to(drafter.device, drafter.dtype), position_ids.to(drafter.device), self.context)

    def inject_run(self, taps: Tensor, first: int) -> None:
        """:meth:`inject` for tokens that stand side by side from position ``first`` on."""
        self.inject(taps, torch.arange(first, first + taps.shape[1], device=self.drafter.device)[None])

    @torch.no_grad()
    def propose(
        self, anchor: Tensor, position: int, count: int, warp: Callable[[Tensor], Tensor] | None = None
    ) -> Draft:
        """Propose ``count`` tokens after ``anchor`` [1, 1], which stands at ``position``; fewer by confidence.

        With ``warp`` they are drawn, from the softmax of what it makes of the drafter's float32 logits [J, V]; else
        each is its slot's argmax.
        """
        drafter, first = self.drafter, self.drafter.config.first_slot
        if position >= self._warned_from:
            warn_past_trained(self.view, drafter, position)
            self._warned_from = math.inf
        slots = first + count if self._shortens else self.drafter.config.block_size
        with self._clock.phase("drafter"):
            ids = torch.cat([anchor.to(drafter.device), self._masks[:, : slots - 1]], dim=1)
            positions = torch.arange(position, position + slots, device=drafter.device)[None]
            hidden = drafter(self.embed(ids), position_ids=positions, cache=self.context).last_hidden_state
        with self._clock.phase("head"):
            draft: Draft = drafter.head.propose(self.block(hidden[:, : first + count], ids[:, :1]), warp)
            return draft

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings [1, n, D] of ids [1, n] as this drafter was trained on them; a mask may have one of its own."""
        drafter, config = self.drafter, self.drafter.config
        embeds = drafter.embed_tokens(ids) if config.embedding == "own" else self.view.embed(ids, config.embedding)
        embeds = (embeds * config.embedding_scale).to(drafter.device, drafter.dtype)
        if config.mask_embedding:
            embeds = torch.where((ids == config.mask_token_id)[..., None], drafter.mask_embedding, embeds)
        return embeds

    def block(self, hidden_states: Tensor, anchor: Tensor) -> Block:
        """What the head works from: hidden states [B, K, D] of whole blocks, and the anchors [B, 1]."""
        drafter, config = self.drafter, self.drafter.config
        own, first = config.draft_vocab_size is not None, config.first_slot
        return Block(
            hidden_states[:, first:],
            first,
            anchor,
            drafter.lm_head if own else lambda states: self.view.project(states).to(drafter.device),
            self._scale,
            self.embed,
            self.view.logit_columns,
            drafter.vocabulary if config.reduced_vocabulary else None,
            self._least_confidence,
            hidden_states[:, :first],
        )

    def _scale(self, outputs: Tensor) -> Tensor:
        """A head's output as the drafter's float32 logits, multiplier and soft cap applied."""
        scale = drafter_scale(self.drafter.config, self.view)
        return scaled_logits(outputs, scale.multiplier, scale.softcap)

    # The host's door.

    def get_candidates(
        self,
        input_ids: Tensor,
        model_kwargs: dict[str, Any] | None = None,
        model_outputs: Any = None,
        is_first_iteration: bool = False,
        n_last_matches: int = 0,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Candidates [1, S + J] for the host's assisted loop. No logits: the host then compares tokens.

        The first call of a generation drafts nothing, so that the host's prefill makes the hidden states.
        """
        if reads_raw_last(self.drafter.config, self.view.num_layers):
            raise UnsupportedCallError(RAW_LAST)
        if is_first_iteration or model_outputs is None:
            return input_ids, None
        length = input_ids.shape[1]
        hidden = model_outputs.hidden_states
        verified = n_last_matches + 1 if self.context.length else hidden[-1].shape[1]
        layers = self.drafter.config.target_layer_ids
        taps = torch.cat([hidden[layer + 1][:, :verified].to(hidden[-1].device) for layer in layers], dim=-1)
        last = length - 2  # the newest token the target has run; the one after it is the anchor
        self.inject_run(taps, last + 1 - verified)
        rooms = [self.most, self.view.room(length - 1, length, length - 1)]
        rooms.append(None if self._max_length is None else self._max_length - length - 1)
        room = min(each for each in rooms if each is not None)
        if room < 1:
            return input_ids, None
        draft = self.propose(input_ids[:, -1:], length - 1, room)
        return torch.cat([input_ids, draft.tokens.to(input_ids.device)], dim=1), None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """The length of a draft does not adapt to what was accepted: nothing to update."""
