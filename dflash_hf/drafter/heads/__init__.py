"""From hidden states of a block to proposals and the probabilities they were drawn from: one head a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.heads.chain import ChainHead
from dflash_hf.drafter.heads.fly import FlyHead
from dflash_hf.drafter.heads.gru import GruHead
from dflash_hf.drafter.heads.markov import MarkovHead
from dflash_hf.drafter.heads.parallel import ParallelHead
from dflash_hf.drafter.heads.selector import SelectorHead

__all__ = ["Head", "head_of"]

Head = ParallelHead | SelectorHead | ChainHead


def head_of(config: DFlashConfig) -> Head:
    """The head that ``config.head`` describes, without weights."""
    settings = dict(config.head)
    return _HEADS[settings.pop("kind")](config, settings)


def _columns(config: DFlashConfig) -> int:
    return config.draft_vocab_size or _tokens(config)


def _tokens(config: DFlashConfig) -> int:
    assert config.stored_vocab_size is not None, "readers give heads with tables of tokens a vocabulary"
    return int(config.stored_vocab_size)


_HEADS: dict[str, Callable[[DFlashConfig, dict[str, Any]], Head]] = {
    "parallel": lambda config, own: ParallelHead(**own),
    "markov": lambda config, own: MarkovHead(
        width=config.hidden_size, tokens=_tokens(config), columns=_columns(config), kind=own.pop("type"), **own
    ),
    "gru": lambda config, own: GruHead(width=config.hidden_size, columns=_columns(config), **own),
    "selector": lambda config, own: SelectorHead(width=config.hidden_size, tokens=_tokens(config), **own),
    "fly": lambda config, own: FlyHead(width=config.hidden_size, eps=config.rms_norm_eps, **own),
}
