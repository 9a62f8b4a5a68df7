"""The process that examines: architectures by key in its arguments, one JSON object a line on stdout.

Run by ``survey``. Before an architecture's drafts it says ``{"drafting": key}``, so that a process that ends there can
be told from one that never got a model.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from contextlib import redirect_stdout
from functools import partial

__all__ = ["main"]


def main(keys: list[str]) -> None:
    from transformers.utils import logging

    from dflash_hf.bench.targets.examine import examine
    from dflash_hf.bench.targets.names import chosen

    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    out = sys.stdout

    def say(item: dict[str, str]) -> None:
        out.write(json.dumps(item) + "\n")
        out.flush()

    with redirect_stdout(sys.stderr):  # models that print must not be taken for rows
        for key in keys:
            (architecture,) = chosen([key])
            say(examine(architecture, partial(say, {"drafting": key})).to_dict())
            gc.collect()


if __name__ == "__main__":
    main(sys.argv[1:])
