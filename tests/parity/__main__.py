"""Every comparison whose package is installed: ``python -m tests.parity``. Exit status 3 where a case differs.

Without any of the packages it exits 1: nothing was compared.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import transformers

_MODULES = {"dflash": "zlab", "speculators": "vllm_speculators"}


def main() -> int:
    chosen = [module for package, module in _MODULES.items() if find_spec(package)]
    chosen += ["muse"] if hasattr(transformers, "MuseGlimmerAssistantModel") else []
    left = sorted({*_MODULES.values(), "muse"} - set(chosen))
    statuses = [import_module(f"tests.parity.{module}").compare() for module in chosen]
    if left:
        sys.stdout.write(f"NOT compared, their packages are not installed: {', '.join(left)}\n")
    return max(statuses, default=1)


if __name__ == "__main__":
    sys.exit(main())
