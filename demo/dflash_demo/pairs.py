"""The loaded pair, one at a time: loaded when first wanted, loaded anew when another dtype is."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from threading import Lock, Thread

from dflash_hf.bench.answers import Sampling, drafted, plain
from dflash_hf.bench.measure import to_device
from dflash_hf.bench.pair import Pair, PairSource
from dflash_hf.bench.prompts import encode

__all__ = ["Pairs"]

_log = logging.getLogger(__name__)

_WARM_UP = Sampling(max_new_tokens=4)


class Pairs:
    """Where runs get their pair from. One run at a time uses it: the page's queue has one worker.

    Args:
        source: which pair.
        warm_up: run it once when it is loaded, so that no visitor's run pays for what a process pays once.
    """

    def __init__(self, source: PairSource, *, warm_up: bool = True) -> None:
        self.source, self._warms_up = source, warm_up
        self._lock = Lock()
        self._held: tuple[str, Pair] | None = None

    @property
    def loaded(self) -> Pair | None:
        """What is in memory now."""
        held = self._held  # read once: a load on another thread empties it meanwhile
        return None if held is None else held[1]

    def get(self, dtype: str, say: Callable[[str], None] = lambda text: None) -> Pair:
        """The pair in this dtype; "auto" is the one the page was started with.

        Raises:
            DFlashError: a model cannot be had, or the two do not fit.
        """
        wanted = self.source.dtype if dtype == "auto" else dtype
        with self._lock:
            if self._held is None or self._held[0] != wanted:
                self._held = None  # before the next one is loaded: memory for one is all a small machine has
                gc.collect()  # an attached model holds itself: its own `generate` is bound to it
                pair = replace(self.source, dtype=wanted).load(say)
                if self._warms_up:
                    _warm_up(pair)
                self._held = (wanted, pair)
            return self._held[1]

    def preload(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Load in the background; ``say`` is told what is loaded, and which drafter was chosen.

        Where that fails the first run says why, to whoever asked for it.
        """

        def load() -> None:
            try:
                self.get("auto", say)
            except Exception as error:
                _log.warning("the pair cannot be loaded: %s", error)

        Thread(target=load, name="dflash-demo-preload", daemon=True).start()


def _warm_up(pair: Pair) -> None:
    inputs = to_device(encode(pair.tokenizer, "Hello"), pair.device)
    drafted(pair, inputs, _WARM_UP)
    plain(pair, inputs, _WARM_UP)
