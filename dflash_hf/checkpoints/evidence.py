"""What a checkpoint shows of itself: tensor names first, config second, never the repository's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.files import TensorTable

__all__ = ["Evidence"]

_WRAPPERS = re.compile(r"^(model\.|draft_model\.|logit_head\.)+")
_PLAIN_DTYPES = {"F64", "F32", "F16", "BF16"}


class Evidence:
    """Questions that detection rules ask of one checkpoint."""

    def __init__(self, config: Mapping[str, Any], tensors: TensorTable) -> None:
        self.config = config
        nested = config.get("dflash_config")
        self.nested: Mapping[str, Any] = nested if isinstance(nested, Mapping) else {}
        architectures = config.get("architectures") or []
        self.architectures = [name for name in architectures if isinstance(name, str)]
        self.names = {_WRAPPERS.sub("", name) for name in tensors}
        # Integers besides the weights (d2t, counters) are no quantisation; integers named weight are.
        self.dtypes = {info.dtype for name, info in tensors.items() if name.endswith("weight")}

    def key(self, name: str) -> Any:
        """A config value, nested first; None when absent."""
        value = self.nested.get(name)
        return self.config.get(name) if value is None else value

    def architecture(self, pattern: str) -> bool:
        """Whether a declared architecture matches."""
        return any(re.search(pattern, name) for name in self.architectures)

    def tensor(self, pattern: str) -> bool:
        """Whether a tensor's name, without wrappers' prefixes, matches."""
        return any(re.search(pattern, name) for name in self.names)

    @property
    def quantised(self) -> bool:
        """Whether weights are stored in something else than plain floats."""
        config = self.config.get("quantization_config") or self.config.get("compression_config")
        packed = self.tensor(r"\.(weight_scale|weight_packed|qweight|weight_scale_inv|weight_global_scale)")
        return bool(config) or packed or bool(self.dtypes - _PLAIN_DTYPES)
