"""A config.json that remembers which of its keys were asked for: where ``inspect`` has the origin of a value from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Recorded", "overlaid"]


class Recorded(dict[str, Any]):
    """The same mapping; ``hits`` holds every key that was asked for and has a value, by its path in the file.

    >>> config = Recorded({"dflash_config": {"block_size": 8}, "rope_theta": None})
    >>> config["dflash_config"].get("block_size"), config.get("rope_theta")
    (8, None)
    >>> config.hits
    {'dflash_config.block_size': 8}
    """

    def __init__(self, values: Mapping[str, Any], path: str = "", hits: dict[str, Any] | None = None) -> None:
        self.hits: dict[str, Any] = {} if hits is None else hits
        self.path = path
        inner = {
            key: Recorded(value, f"{path}{key}.", self.hits) if isinstance(value, Mapping) else value
            for key, value in values.items()
        }
        super().__init__(inner)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - dict.get would not come by __getitem__

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if value is not None and not isinstance(value, Recorded):
            self.hits[f"{self.path}{key}"] = value
        return value


def overlaid(config: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """``config`` with other values for some keys; what is asked of it counts as asked of ``config``."""
    values = {**dict(config.items()), **changes}
    return Recorded(values, config.path, config.hits) if isinstance(config, Recorded) else values
