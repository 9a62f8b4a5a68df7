"""Keep libraries' progress bars and log lines out of a command's output; warnings become one line each."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import ERROR, getLogger
from typing import TextIO

__all__ = ["quiet_libraries", "quiet_transformers"]

_FOR_PEOPLE = (UserWarning, RuntimeWarning)  # the rest (deprecations) speaks to the libraries' developers

_loud: ContextVar[bool] = ContextVar("dflash_hf_cli_loud", default=False)


@contextmanager
def quiet_libraries(debug: bool) -> Iterator[None]:
    """Show warnings meant for people as ``warning: ...`` on stderr, once each; leave all as it is with ``debug``."""
    _loud.set(debug)
    if debug:
        yield
        return
    said: set[str] = set()

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        line: str | None = None,
    ) -> None:  # fmt: skip
        text = str(message)
        if issubclass(category, _FOR_PEOPLE) and text not in said:
            said.add(text)
            print(f"warning: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield


def quiet_transformers() -> None:
    """Silence transformers, called by whoever has just imported it; downloads keep their bar where a person watches."""
    if _loud.get():
        return
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils import logging

    logging.set_verbosity_error()
    getLogger("bitsandbytes").setLevel(ERROR)  # its 8-bit layers log a line at every multiplication
    logging.disable_progress_bar()
    if not sys.stderr.isatty():
        disable_progress_bars()
