"""The command line, ``dflash-hf``. Importing it imports neither torch nor transformers: commands do, when they run."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the console script. Exits with 0, 1 failure, 2 usage, 3 a check failed, 130 interrupted."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars are for people; read when tqdm is first imported
    from dflash_hf.cli.app import app

    app()
