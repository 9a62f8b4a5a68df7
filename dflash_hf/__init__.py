"""DFlash speculative decoding for Hugging Face transformers: the same text, in fewer steps of the model.

    model = dflash_hf.attach(model)
    model.generate(**inputs, assistant=drafter)

Importing this package imports nothing else: each public name is looked up when it is first used (PEP 562), and
nothing in transformers is patched or registered, neither now nor then.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; the table below is what runs
    from dflash_hf.config import DFlashConfig
    from dflash_hf.drafter.model import DFlashDrafter
    from dflash_hf.errors import (
        CheckpointError,
        DFlashError,
        DFlashWarning,
        HubError,
        IncompatiblePairError,
        OptionsError,
        TraceError,
        TrainingError,
        UnsupportedCallError,
        UnsupportedCheckpointError,
        UnsupportedTargetError,
    )
    from dflash_hf.generation.attach import attach, detach
    from dflash_hf.generation.candidates import DFlashCandidateGenerator
    from dflash_hf.generation.decode import generate
    from dflash_hf.generation.outputs import DFlashOutput
    from dflash_hf.generation.pair import DFlashModel, load_pair
    from dflash_hf.generation.record import last_trace
    from dflash_hf.options import DFlashOptions
    from dflash_hf.target.pairing import check_pair
    from dflash_hf.trace import RoundRecord, Trace

__all__ = [
    "CheckpointError",
    "DFlashCandidateGenerator",
    "DFlashConfig",
    "DFlashDrafter",
    "DFlashError",
    "DFlashModel",
    "DFlashOptions",
    "DFlashOutput",
    "DFlashWarning",
    "HubError",
    "IncompatiblePairError",
    "OptionsError",
    "RoundRecord",
    "Trace",
    "TraceError",
    "TrainingError",
    "UnsupportedCallError",
    "UnsupportedCheckpointError",
    "UnsupportedTargetError",
    "__version__",
    "attach",
    "check_pair",
    "detach",
    "generate",
    "last_trace",
    "load_pair",
]

__version__ = "0.1.0.dev0"

_HOMES = {  # module: the public names it gives
    "config": ("DFlashConfig",),
    "drafter.model": ("DFlashDrafter",),
    "errors": (
        "CheckpointError",
        "DFlashError",
        "DFlashWarning",
        "HubError",
        "IncompatiblePairError",
        "OptionsError",
        "TraceError",
        "TrainingError",
        "UnsupportedCallError",
        "UnsupportedCheckpointError",
        "UnsupportedTargetError",
    ),
    "generation.attach": ("attach", "detach"),
    "generation.candidates": ("DFlashCandidateGenerator",),
    "generation.decode": ("generate",),
    "generation.outputs": ("DFlashOutput",),
    "generation.pair": ("DFlashModel", "load_pair"),
    "generation.record": ("last_trace",),
    "options": ("DFlashOptions",),
    "target.pairing": ("check_pair",),
    "trace": ("RoundRecord", "Trace"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dflash_hf' has no attribute {name!r}")
    value = getattr(import_module(f"dflash_hf.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
