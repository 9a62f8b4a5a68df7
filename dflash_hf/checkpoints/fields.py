"""Reads keys of a config.json strictly, and writes down every default that was filled in.

A key is absent when it is missing or null. Drafter keys are looked up in ``dflash_config`` first, then in the blocks
that SpecForge puts beside it (``nested_keys.BLOCKS``), at the top level last; body keys at the top level only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.nested_keys import BLOCKS
from dflash_hf.errors import CheckpointError

__all__ = ["Fields"]

_NO_DEFAULT = object()


class Fields:
    """One config, read key by key.

    Args:
        config: the parsed config.json.
        writer: who fills in missing keys, for the record: ``"z-lab's writer"``.
    """

    def __init__(self, config: Mapping[str, Any], writer: str) -> None:
        self.top = config
        self.blocks = {name: _block(config, name) for name in BLOCKS}
        self.nested = self.blocks[BLOCKS[0]]
        self.writer = writer
        self.defaults: list[str] = []
        self.notes: list[str] = []

    def drafter(self, key: str) -> Any:
        """A drafter key, nested first; None when absent.

        Raises:
            CheckpointError: two blocks say different things.
        """
        said = {name: value for name, block in self.blocks.items() if (value := block.get(key)) is not None}
        first = next(iter(said.values()), None)
        if any(value != first for value in said.values()):
            each = ", ".join(f"{name}.{key} is {value!r}" for name, value in said.items())
            raise CheckpointError(f"config.json contradicts itself: {each}")
        return self.top.get(key) if first is None else first

    def filled(self, key: str, value: Any, reason: str | None = None) -> Any:
        """Record that ``key`` was absent and ``value`` taken."""
        self.defaults.append(f"{key}={value}: {reason or f'default of {self.writer}'}")
        return value

    def integer(self, key: str, default: Any = _NO_DEFAULT, *, minimum: int = 1, drafter: bool = False) -> Any:
        """A whole number of at least ``minimum``."""
        value = self._value(key, default, drafter)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
            raise self.wrong(key, value, f"a whole number of at least {minimum}")
        return value

    def number(self, key: str, default: Any = _NO_DEFAULT, *, drafter: bool = False) -> Any:
        """A positive number, as a float."""
        value = self._value(key, default, drafter)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.wrong(key, value, "a positive number")
        return float(value)

    def flag(self, key: str, default: Any = _NO_DEFAULT, *, drafter: bool = False) -> Any:
        """True or false; a string or number is an error, however it looks."""
        value = self._value(key, default, drafter)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def choice(self, key: str, known: tuple[str, ...], default: Any = _NO_DEFAULT, *, drafter: bool = False) -> Any:
        """One of the strings in ``known``."""
        value = self._value(key, default, drafter)
        if value is not None and value not in known:
            raise self.wrong(key, value, " or ".join(map(repr, known)))
        return value

    def integers(self, key: str) -> list[int] | None:
        """A drafter key that is a list of whole numbers; None when absent."""
        value = self.drafter(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
            raise self.wrong(key, value, "a list of whole numbers")
        return list(value)

    def wrong(self, key: str, value: Any, needed: str) -> CheckpointError:
        """The error for a value nobody defined."""
        return CheckpointError(f"config.json: {key} is {value!r}, but {needed} is needed")

    def _value(self, key: str, default: Any, drafter: bool) -> Any:
        value = self.drafter(key) if drafter else self.top.get(key)
        if value is not None or default is None:
            return value
        if default is _NO_DEFAULT:
            raise CheckpointError(
                f"config.json has no {key}, and {self.writer} has no default for it; add it to config.json "
                "(the card or the training config says what it is)"
            )
        return self.filled(key, default)


def _block(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = config.get(name)
    if block is None:
        return {}
    if not isinstance(block, Mapping):
        raise CheckpointError(f"config.json: {name} is {block!r}, a JSON object is needed")
    return block
