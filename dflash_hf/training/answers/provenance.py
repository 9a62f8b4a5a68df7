"""What else has to be the same for answers to belong together: the tokenizer, and the packages."""

from __future__ import annotations

import hashlib
from importlib import metadata
from typing import Any

from dflash_hf import __version__

__all__ = ["tokenizer_fingerprint", "versions"]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A sha256 of the vocabulary: every token with its id."""
    digest = hashlib.sha256()
    for token, number in sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{number} {token}\n".encode())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of this package and the two that decide what a target says."""
    return {"dflash-hf": __version__, **{name: metadata.version(name) for name in ("torch", "transformers")}}
