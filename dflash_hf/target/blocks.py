"""Targets whose attention reads several tokens at once otherwise than one after another.

Drafting asks a target for the same states of a block as of its tokens one by one. What cannot be seen in a model's
parts stands in a table here, by ``model_type``; recurrent layers are tried (``target.recurrent``).
"""

from __future__ import annotations

from typing import Any

__all__ = ["reads_blocks_otherwise"]

_OTHERWISE = {
    # A mask without windows over a cache with them (transformers 5.18 to 5.24): a window holds for single tokens only.
    "moshi": "keeps to its window for single tokens only, so that a block of drafted tokens would be read otherwise",
    "prophetnet": "reads one token at a time once it has a cache",  # by an assertion in its decoder
}


def reads_blocks_otherwise(config: Any) -> str | None:
    """Why a block of tokens is not read as its tokens one by one, or None.

    >>> from types import SimpleNamespace
    >>> reads_blocks_otherwise(SimpleNamespace(model_type="llama")) is None
    True
    """
    return _OTHERWISE.get(config.model_type)
