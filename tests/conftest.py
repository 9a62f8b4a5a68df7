"""Settings every test runs under: one thread, no network, quiet libraries. Set before anything heavy is imported."""

from __future__ import annotations

import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

torch.set_num_threads(1)


def pytest_collection_finish(session: object) -> None:
    """What thousands of collected tests hold stays until the end: the collector need not walk it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
