"""Which weights mean what their numbers say: neither quantised nor offloaded.

In: a parameter, or a model. Out: a reason for people, or None. What multiplies with a weight asks the layer that owns
it and needs none of this; what copies weights, or judges how well a model repeats itself, does.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["is_quantised", "unreadable"]

_LEAST_BYTES = 2  # of a value: float8 weights are floating point and mean nothing without their scales


def unreadable(weight: Tensor) -> str | None:
    """Why this weight cannot be copied as it is, or None."""
    if weight.device.type == "meta":
        return "offloaded"
    if type(weight.data) is not Tensor:
        return f"a {type(weight.data).__name__}"
    return "quantised" if _is_packed(weight) else None


def is_quantised(model: nn.Module) -> bool:
    """Whether any matrix of the model is quantised, by whatever library."""
    return any(weight.dim() > 1 and _is_packed(weight) for weight in model.parameters())


def _is_packed(weight: Tensor) -> bool:
    """Integers, 8-bit floats, or a tensor of a kind of its own (torchao)."""
    plain = type(weight.data) is Tensor
    return not plain or not weight.is_floating_point() or weight.itemsize < _LEAST_BYTES
