"""The demo as a Hugging Face Space, on a CPU, a GPU or ZeroGPU; ``python app.py`` runs it anywhere else.

``DEMO_TARGET`` and ``DEMO_DRAFTER`` (Hub ids or folders) name a pair; without them it is the embedded one.
``DEMO_QUANTIZATION`` (bnb-8bit, bnb-4bit) quantises the target.
"""

from __future__ import annotations

import os

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

LIMITS = Limits(new_tokens=512, seconds=60)  # a public page: one visitor must not hold the queue for long

source = PairSource(
    os.environ.get("DEMO_TARGET"),
    os.environ.get("DEMO_DRAFTER"),
    quantization=os.environ.get("DEMO_QUANTIZATION"),
)
pairs = Pairs(source, warm_up=spaces is None)
if spaces is None:
    pairs.preload()
    page = build(pairs, LIMITS)
else:
    pairs.get("auto")  # in this process: each run's own gets the weights from it
    page = build(pairs, LIMITS, gpu=spaces.GPU(duration=2 * int(LIMITS.seconds)))

if __name__ == "__main__":
    page.launch(**launch_options())
