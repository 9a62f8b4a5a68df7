"""From logits and a draft to what is committed: the processors and criteria of one call, walked or applied at once.

Processors see committed tokens only, once each, in order. Where none of them and no criterion looks at anything but
scores, ids and length, a round is one tensor operation and one copy to the host ("vectorised"), else a walk
("stepwise"). Shapes: J drafted tokens, K = J + 1 places, m committed tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, MaxLengthCriteria, StoppingCriteriaList

from dflash_hf.drafter.heads.draft import Draft
from dflash_hf.generation.accept import cut_at_end_of_text, keep_while_argmax, keep_while_drawn
from dflash_hf.generation.steps import end_of_text_ids, length_limit, needs_steps, position_free

__all__ = ["Acceptance", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target made of a draft."""

    ids: Tensor  # [1, m] committed: they join the sequence
    tokens: list[int]  # the same
    drafted: list[int]  # what was proposed
    accepted: int  # the first so many of them were drafted
    done: bool  # the text ends with them
    target_p: list[float | None] | None = None  # of each drafted token, when asked; None where it was not looked at
    own_p: float | None = None  # of the target's own token, when asked and there is one


class Acceptance:
    """The rule of one row of a call. ``scores`` and ``logits`` grow by [1, V] a committed token, if they are returned.

    Args:
        processors, criteria, config: as the host prepared them.
        show: called with each committed token once the criteria have seen it.
        probabilities: also give the target's probability of each drafted token and of its own.
    """

    def __init__(
        self,
        processors: Any,
        criteria: Any,
        config: GenerationConfig,
        show: Callable[[int], None] = lambda token: None,
        probabilities: bool = False,
    ) -> None:
        self.processors, self.criteria = processors, criteria
        self.do_sample = bool(config.do_sample)
        self.show, self.probabilities = show, probabilities
        self.stepwise = needs_steps(processors, criteria)
        self.ends = end_of_text_ids(criteria)
        self.limit = length_limit(criteria)
        returned = bool(config.return_dict_in_generate)
        self.scores: tuple[Tensor, ...] | None = () if returned and config.output_scores else None
        self.logits: tuple[Tensor, ...] | None = () if returned and config.output_logits else None
        self._warpers = position_free(processors)

    def warp(self, logits: Tensor, device: torch.device) -> Tensor:
        """A drafter's logits [J, V] as far as the call's warpers go that need no ids: a q near to p is kept more.

        ``device`` is the ids', where the host put the tensors that warpers hold; a drafter may be on another.
        """
        warped = logits.to(device)
        unread = torch.empty(len(logits), 0, dtype=torch.long, device=device)
        for warper in self._warpers:
            warped = warper(unread, warped)
        return warped.to(logits.device)

    def only_length(self, limit: int) -> None:
        """From now on nothing but this total length ends the text."""
        self.ends, self.limit = frozenset(), limit
        self.criteria = StoppingCriteriaList([MaxLengthCriteria(limit)])

    def verdict(self, ids: Tensor, logits: Tensor, draft: Draft | None) -> Verdict:
        """What of ``draft`` stays after ``ids`` [1, S], by the target's ``logits`` [K, V]."""
        logits = logits.to(device=ids.device, dtype=torch.float32, copy=True)  # processors may write into it
        drafted = ids.new_empty(0) if draft is None else draft.tokens[0].to(ids.device)
        q = None if draft is None or draft.q is None else draft.q[0].to(ids.device)
        verdict = (self._walk if self.stepwise else self._at_once)(ids, logits, drafted, q)
        self._return(logits[: len(verdict.tokens)])
        return verdict

    def forced(self, ids: Tensor, logits: Tensor, tokens: Tensor) -> None:
        """Score ``tokens`` [m] that follow ``ids`` whatever ``logits`` [m, V] say."""
        if self.scores is None and self.logits is None:
            return
        logits = logits.to(device=ids.device, dtype=torch.float32, copy=True)
        if self.scores is not None:
            for row, token in zip(logits, tokens, strict=True):
                self.scores += (self.processors(ids, row[None]),)
                ids = torch.cat([ids, token.view(1, 1)], dim=1)
        self._return(logits)

    def _return(self, logits: Tensor) -> None:
        """As in plain decoding, what a processor wrote into its argument shows in the logits."""
        if self.logits is not None:
            self.logits += tuple(row[None].clone() for row in logits)

    def _keep(self, scores: Tensor, drafted: Tensor, q: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.do_sample:
            return keep_while_drawn(scores, drafted, q)
        return keep_while_argmax(scores, drafted)

    def _at_once(self, ids: Tensor, logits: Tensor, drafted: Tensor, q: Tensor | None) -> Verdict:
        scores = self.processors(ids, logits)
        picks, kept = self._keep(scores, drafted, q)
        copied = torch.cat([picks, drafted, kept.view(1)]).tolist()  # the round's one copy to the host
        own, proposed, accepted = copied[: len(picks)], copied[len(picks) : -1], copied[-1]
        tokens = cut_at_end_of_text(own[: accepted + 1], self.ends)
        if self.scores is not None:
            self.scores += tuple(scores[place, None].clone() for place in range(len(tokens)))
        full = self.limit is not None and ids.shape[1] + len(tokens) >= self.limit
        accepted = min(accepted, len(tokens))
        target_p: list[float | None] | None = None
        own_p: float | None = None
        if self.probabilities:
            p = torch.softmax(scores, dim=-1)
            of_draft = p[: len(drafted)].gather(1, drafted[:, None])
            of_own = p[len(tokens) - 1].gather(0, picks[len(tokens) - 1 : len(tokens)])
            found = torch.cat([of_draft.flatten(), of_own]).tolist()
            target_p, own_p = found[:-1], found[-1]
        done = full or tokens[-1] in self.ends
        for token in tokens:
            self.show(token)
        own_p = own_p if accepted < len(tokens) else None  # the text may end on a drafted token
        return Verdict(picks[None, : len(tokens)], tokens, proposed, accepted, done, target_p, own_p)

    def _walk(self, ids: Tensor, logits: Tensor, drafted: Tensor, q: Tensor | None) -> Verdict:
        """Place by place, as plain decoding would go, until the first disagreement or the end."""
        start, proposed, tokens = ids.shape[1], drafted.tolist(), list[int]()
        accepted, done = 0, 0
        target_p: list[float | None] = [None] * len(proposed)
        own_p: float | None = None
        for place, row in enumerate(logits):
            scores = self.processors(ids, row[None])
            here = slice(place, place + 1)
            token, kept = self._keep(scores, drafted[here], q[here] if q is not None else None)
            ids = torch.cat([ids, token[None]], dim=1)
            if self.scores is not None:
                self.scores += (scores,)
            p = torch.softmax(scores[0], dim=-1) if self.probabilities else None
            if p is not None and place < len(proposed):
                target_p[place] = float(p[proposed[place]])
            ended = self.criteria(ids, self.scores).all().to(token)
            number, agreed, done = torch.stack([token[0], kept, ended]).tolist()  # a place's one copy to the host
            tokens.append(number)
            self.show(number)
            accepted += agreed
            if p is not None and not agreed:
                own_p = float(p[number])
            if done or not agreed:
                break
        given = target_p if self.probabilities else None
        return Verdict(ids[:, start:], tokens, proposed, accepted, bool(done), given, own_p)
