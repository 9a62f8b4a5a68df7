"""What a checkpoint shows of itself: tensor names first, config second, never the repository's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.nested_keys import BLOCKS
from dflash_hf.checkpoints.reading import unwrapped
from dflash_hf.checkpoints.recorded import Recorded

__all__ = ["Evidence"]

_PLAIN_DTYPES = {"F64", "F32", "F16", "BF16"}


class Evidence:
    """Questions that detection rules ask of one checkpoint."""

    def __init__(self, config: Mapping[str, Any], tensors: TensorTable) -> None:
        self.config = Recorded(config)
        self.shown: list[str] = []  # what answered yes since the last :meth:`forget`
        blocks = {name: self.config.get(name) for name in BLOCKS}
        self.blocks = {name: block for name, block in blocks.items() if isinstance(block, Mapping)}
        self.nested: Mapping[str, Any] = self.blocks.get(BLOCKS[0], {})
        architectures = config.get("architectures")
        listed = architectures if isinstance(architectures, list) else [architectures]
        self.architectures = [name for name in listed if isinstance(name, str)]
        self.names = {unwrapped(name) for name in tensors}
        # Integers besides the weights (d2t, counters) are no quantisation; integers named weight are.
        self.dtypes = {info.dtype for name, info in tensors.items() if name.endswith("weight")}

    def key(self, name: str) -> Any:
        """A config value, nested first; None when absent."""
        said = (block.get(name) for block in self.blocks.values())
        value = next((value for value in said if value is not None), None)
        return self.config.get(name) if value is None else value

    def architecture(self, pattern: str) -> bool:
        """Whether a declared architecture matches."""
        return self._note(next((f"architectures {n}" for n in self.architectures if re.search(pattern, n)), None))

    def tensor(self, pattern: str) -> bool:
        """Whether a tensor's name, without wrappers' prefixes, matches."""
        return self._note(next((f"tensor {name}" for name in sorted(self.names) if re.search(pattern, name)), None))

    def forget(self) -> None:
        """Start noting anew: the next rule speaks for itself."""
        self.shown.clear()
        self.config.hits.clear()

    def why(self) -> tuple[str, ...]:
        """What was found since, in words: tensors, architectures, and config keys that have a value."""
        keys = (f"{path}={value}" for path, value in self.config.hits.items() if path != "architectures")
        return tuple(dict.fromkeys([*self.shown, *(key for key in keys if key != "model_type=qwen3")]))

    def _note(self, found: str | None) -> bool:
        if found is not None:
            self.shown.append(found)
        return found is not None

    @property
    def quantised(self) -> bool:
        """Whether weights are stored in something else than plain floats."""
        config = self.config.get("quantization_config") or self.config.get("compression_config")
        packed = self.tensor(r"\.(weight_scale|weight_packed|qweight|weight_scale_inv|weight_global_scale)")
        return bool(config) or packed or bool(self.dtypes - _PLAIN_DTYPES)
