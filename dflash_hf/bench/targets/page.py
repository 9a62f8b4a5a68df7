"""The table as a page of the documentation: Markdown from rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dflash_hf.bench.targets.rows import EXACT, REFUSED, Row, counts

__all__ = ["page"]

_HEAD = """# Targets

## How to read this

Every causal LM and every image-text model that transformers {version} loads, {total} architectures, each as a small
random model in float32 on a CPU with windows of {window}. Every one decodes {new} tokens of text greedily, plainly and
with drafters whose proposals are all accepted, none, and spoiled at places.

**{counts}.**

*exact*: every token is the plain one, and every score within rounding. *refused*: `generate(assistant=...)` says why,
before any work. *not built*: no small model of it could be made here, or transformers itself cannot decode the one that
was made; nothing is known of it. *differs* and *failed* would be faults of ours. The cache is the one transformers
gives the model, with the kinds of its layers; the state is how the target's memory goes back after a verification.
Pictures are not part of this table. Sparse attention that picks tokens (`index_topk`) is exact for texts no longer than
that, as all are here; what holds past it: [exactness](exactness.md#sparse-attention). It is written by

```console
$ dflash-hf targets --out docs/targets.md
```

## Table

| architecture | class | cache | state | result |
|---|---|---|---|---|
"""


def page(rows: Sequence[Row], version: str, *, window: int, new: int) -> str:
    """The page.

    Args:
        rows: of all architectures, in the order in which they are shown.
        version: of transformers.
        window, new: what was run: the windows of the small models, and how many tokens each decoded.
    """
    told = ", ".join(f"{number} {outcome}" for outcome, number in counts(rows).items())
    head = _HEAD.format(version=version, total=len(rows), counts=told, window=window, new=new)
    return head + "".join(f"{_line(row)}\n" for row in rows)


def _line(row: Row) -> str:
    result = row.outcome if row.outcome == EXACT else f"{row.outcome}: {_cell(_shortly(row))}"
    cells = (f"`{row.model_type}`", f"`{row.model_class}`", row.cache or "-", row.state or "-", result)
    return f"| {' | '.join(cells)} |"


def _shortly(row: Row) -> str:
    """A refusal without the name that stands in its row, without particulars in brackets and the advice after it."""
    why = row.why.replace(f"{row.model_class} ({row.model_class}) ", "").replace(f"{row.model_class} with ", "with ")
    return (
        re.sub(r" \((?:[^()]|\(\))*\)", "", re.split(r"[;.] ", why)[0]).removesuffix(".")
        if row.outcome == REFUSED
        else why
    )


def _cell(text: str) -> str:
    """Text that cannot end a cell or begin markup."""
    return re.sub(r"([|`*_<>\[\]{}\\])", r"\\\1", text)
