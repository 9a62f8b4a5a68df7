"""What happened in a drafted call: one ``RoundRecord`` a round, totals under vLLM's per-request names.

Counts, defined once (the prefill is not a round; its token is ``Trace.first_token``):

* drafted: tokens proposed in a round; accepted: those of them the target kept;
* bonus: the target's own token after the accepted ones; a round that ends the text on a drafted token has none;
* cut: a round that ended the text (EOS, criterion, length), or had room for less than a block;
* committed = accepted + bonus: what the round adds to the output;
* a round of width 0 drafted nothing (plain decoding) and stays out of every acceptance figure;
* acceptance length (tau) = committed tokens per drafting round, bonus included, the cut last round counted.

This module imports neither torch nor transformers, so that a trace can be read anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dflash_hf.errors import TraceError

__all__ = ["SCHEMA", "RoundRecord", "Trace", "merge_metrics"]

SCHEMA = "dflash-hf/trace/1"


@dataclass(slots=True)
class RoundRecord:
    """One round: one drafter forward, one target forward, one commit. Times are milliseconds."""

    drafted: list[int]  # token ids proposed after the anchor
    accepted: int  # how many of them reached the output
    bonus: int | None  # the target's own token, None when the text ended on a drafted one
    cut: bool = False  # the round ended the text, or the length left room for less than a block
    drafter_ms: float = 0.0  # injection and the drafter's forward
    head_ms: float = 0.0  # the target's LM head over the block
    target_ms: float = 0.0  # the target's forward
    replay_ms: float = 0.0  # its recurrent layers run again, over what was accepted
    round_ms: float = 0.0  # the whole round, commit included
    target_p: list[float | None] | None = None  # the target's probability of each drafted token, when asked
    draft_q: list[float] | None = None  # the drafter's own
    bonus_p: float | None = None  # the target's probability of its own token, when asked
    row: int = 0  # of the batch, which is decoded row after row

    @property
    def tokens(self) -> list[int]:
        """The committed token ids, in order."""
        return self.drafted[: self.accepted] + ([] if self.bonus is None else [self.bonus])

    @property
    def committed(self) -> int:
        return self.accepted + (self.bonus is not None)

    @property
    def loop_ms(self) -> float:
        """What is neither drafter nor head nor target nor replay: acceptance, bookkeeping, streaming."""
        return self.round_ms - self.drafter_ms - self.head_ms - self.target_ms - self.replay_ms


@dataclass(slots=True)
class Trace:
    """One call of ``generate``. ``fallback`` says why nothing was drafted, when nothing was.

    With several rows, ``rows`` has a trace of each, in order, and only ``total_ms`` is of the whole call.
    """

    prompt_tokens: int = 0
    first_token: int | None = None
    first_token_p: float | None = None  # the target's probability of it, when asked
    rounds: list[RoundRecord] = field(default_factory=list)
    prefill_ms: float = 0.0
    total_ms: float = 0.0
    block_size: int = 0
    loop: str = "sequential"  # which loop ran
    acceptance: str = ""  # "greedy" or "sampled", "vectorised" or "stepwise": how tokens were taken
    target: str = ""
    drafter: str = ""
    dtype: str = ""
    device: str = ""
    attn_implementation: str = ""
    state: str = ""  # how the target's memory goes back: "crop" or "replay"
    spare_bytes: int = 0  # second buffers for recurrent states
    packed_bytes: int = 0  # copies of weights laid out for narrow products (``DFlashOptions.pack_weights``)
    context_bytes: int = 0  # buffers of the drafter's context: the larger of after the prefill and at the end
    taps_bytes: int = 0  # most hidden states of the target that were held for the drafter at once
    fallback: str | None = None
    rows: list[Trace] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """All committed token ids: the prefill's token, then every round's."""
        first = [] if self.first_token is None else [self.first_token]
        return first + [token for record in self.rounds for token in record.tokens]

    def metrics(self) -> dict[str, Any]:
        """Totals of this call; see :func:`merge_metrics`."""
        return merge_metrics([self, *self.rows])

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "metrics": self.metrics()}

    def to_json(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Trace:
        """The inverse of :meth:`to_dict`.

        Raises:
            TraceError: another schema, or fields that are missing, unknown or of the wrong kind.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise TraceError(f"not a trace this version reads: schema {found!r}, expected {SCHEMA!r}")
        body = {key: value for key, value in data.items() if key not in ("schema", "metrics")}
        if unknown := sorted(set(body) - {item.name for item in fields(cls)}):
            raise TraceError(f"the trace is damaged: it has no field {', '.join(unknown)}; known: {_names(cls)}")
        try:
            trace = cls._of_fields(body)
            _refuse_impossible(trace)
            trace.metrics()
        except (KeyError, TypeError, AttributeError) as error:
            raise TraceError(f"the trace is damaged: {error}; known fields: {_names(cls)}") from error
        return trace

    @classmethod
    def _of_fields(cls, body: dict[str, Any]) -> Trace:
        rounds = [RoundRecord(**record) for record in body["rounds"]]
        return cls(**{**body, "rounds": rounds, "rows": [cls._of_fields(row) for row in body.get("rows", [])]})

    @classmethod
    def from_json(cls, path: str | Path) -> Trace:
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TraceError(f"cannot read a trace from {path}: {error}") from error
        return cls.from_dict(data)


def _refuse_impossible(trace: Trace) -> None:
    for number, record in enumerate(trace.rounds, start=1):
        if not 0 <= record.accepted <= len(record.drafted):
            raise TraceError(
                f"the trace is damaged: round {number} has {len(record.drafted)} drafted tokens, {record.accepted} of "
                "them accepted"
            )
    for row in trace.rows:
        _refuse_impossible(row)


def _names(cls: type) -> str:
    return ", ".join(item.name for item in fields(cls))


def merge_metrics(traces: Iterable[Trace]) -> dict[str, Any]:
    """Token-weighted totals over calls, under vLLM's per-request names, plus ours.

    ``mean_acceptance_length`` is vLLM's (1 + accepted drafts per drafting round); ``tau`` counts committed tokens,
    so a cut round counts what it really gave; ``tau_uncut`` leaves cut rounds out. Acceptance by position comes in
    both usual definitions: ``acceptance_by_position`` (of all rounds that drafted this position, as vLLM) and
    ``conditional_acceptance_by_position`` (of the rounds whose earlier positions were all accepted).
    """
    rounds = [record for trace in traces for record in trace.rounds]
    drafting = [record for record in rounds if record.drafted]
    uncut = [record for record in drafting if not record.cut]
    steps, longest = len(drafting), max((len(record.drafted) for record in drafting), default=0)
    drafted = sum(len(record.drafted) for record in drafting)
    accepted = sum(record.accepted for record in drafting)
    histogram = [0] * (longest + 1)
    by_length: dict[str, list[int]] = {}
    for record in drafting:
        histogram[record.accepted] += 1
        row = by_length.setdefault(str(len(record.drafted)), [0] * (len(record.drafted) + 1))
        row[record.accepted] += 1
    offered = [sum(len(record.drafted) > place for record in drafting) for place in range(longest)]
    reached = [
        sum(len(record.drafted) > place and record.accepted >= place for record in drafting) for place in range(longest)
    ]
    kept = [sum(record.accepted > place for record in drafting) for place in range(longest)]
    return {
        "num_spec_steps": steps,
        "num_plain_steps": len(rounds) - steps,
        "num_spec_tokens": longest,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "mean_acceptance_length": _ratio(steps + accepted, steps),
        "draft_acceptance_rate": _ratio(accepted, drafted),
        "acceptance_histogram": histogram if steps else [],
        "acceptance_histogram_by_draft_length": by_length,
        "per_step_drafted": [len(record.drafted) for record in drafting],
        "per_step_accepted": [record.accepted for record in drafting],
        "tau": _ratio(sum(record.committed for record in drafting), steps),
        "tau_uncut": _ratio(sum(record.committed for record in uncut), len(uncut)),
        "acceptance_by_position": [_ratio(k, n) for k, n in zip(kept, offered, strict=True)],
        "conditional_acceptance_by_position": [_ratio(k, n) for k, n in zip(kept, reached, strict=True)],
    }


def _ratio(part: float, whole: float) -> float | None:
    """``part / whole``, or None where there is nothing to divide by: a figure nobody measured is not 0."""
    return part / whole if whole else None
