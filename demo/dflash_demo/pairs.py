"""The loaded pair, one at a time: loaded when first wanted, loaded anew when another dtype is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock, Thread

from dflash_hf.bench.answers import Sampling, drafted, plain
from dflash_hf.bench.measure import to_device
from dflash_hf.bench.pair import Pair, PairSource
from dflash_hf.bench.prompts import encode

__all__ = ["Pairs"]

_WARM_UP = Sampling(max_new_tokens=4)


class Pairs:
    """Where runs get their pair from. One run at a time uses it: the page's queue has one worker."""

    def __init__(self, source: PairSource) -> None:
        self.source = source
        self._lock = Lock()
        self._held: tuple[str, Pair] | None = None

    @property
    def loaded(self) -> Pair | None:
        """What is in memory now."""
        return None if self._held is None else self._held[1]

    def get(self, dtype: str, say: Callable[[str], None] = lambda text: None) -> Pair:
        """The pair in this dtype; "auto" is the one the page was started with.

        Raises:
            DFlashError: a model cannot be had, or the two do not fit.
        """
        wanted = self.source.dtype if dtype == "auto" else dtype
        with self._lock:
            if self._held is None or self._held[0] != wanted:
                self._held = None  # before the next one is loaded: memory for one is all a small machine has
                pair = replace(self.source, dtype=wanted).load(say)
                _warm_up(pair)
                self._held = (wanted, pair)
            return self._held[1]

    def preload(self, failed: Callable[[Exception], None]) -> None:
        """Load in the background; ``failed`` hears why it could not, and the first run will say it again."""

        def load() -> None:
            try:
                self.get("auto")
            except Exception as error:
                failed(error)

        Thread(target=load, name="dflash-demo-preload", daemon=True).start()


def _warm_up(pair: Pair) -> None:
    """What a process pays once (allocations, kernels) belongs to no visitor's run."""
    inputs = to_device(encode(pair.tokenizer, "Hello"), pair.model.device)
    drafted(pair, inputs, _WARM_UP)
    plain(pair, inputs, _WARM_UP)
