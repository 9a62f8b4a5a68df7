"""Every error a user can meet, under one base class, so that ``except DFlashError`` is enough.

A message names both sides and the way out. Our own bugs stay ``AssertionError``. What is legal but unlikely to be
meant is a ``DFlashWarning``.
"""

import sys
import warnings

__all__ = [
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
    "warn",
]


class DFlashError(Exception):
    """Base of all errors raised by dflash_hf."""


class OptionsError(DFlashError, ValueError):
    """An option has a value it cannot have."""


class CheckpointError(DFlashError):
    """A drafter's files are incomplete, contradictory, or carry tensors nobody reads."""


class UnsupportedCheckpointError(CheckpointError):
    """The files are a known or unknown dialect that this version does not read."""


class HubError(DFlashError):
    """The Hub could not deliver: gated, missing, offline, wrong revision, or a cut download."""


class IncompatiblePairError(DFlashError):
    """This drafter cannot draft for this target."""


class UnsupportedTargetError(DFlashError):
    """The target's architecture cannot be drafted for by this version."""


class UnsupportedCallError(DFlashError):
    """This call of ``generate`` asks for something that cannot be drafted."""


class TraceError(DFlashError):
    """A trace file cannot be read: not a trace, or of another schema version."""


class TrainingError(DFlashError):
    """Training data or a recipe cannot be used as given."""


class DFlashWarning(UserWarning):
    """Something that works, but probably not as meant."""


_PASSED_THROUGH = ("dflash_hf", "transformers", "torch")  # a drafted call goes through the host's ``generate``


def warn(message: str) -> None:
    """A ``DFlashWarning`` that points at the user's line that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED_THROUGH:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DFlashWarning, stacklevel=level)
