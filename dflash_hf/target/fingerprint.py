"""Which weights are these? A short hash that files made by a target carry, so that they never meet another target.

It is taken from a sample of every parameter, rounded to bfloat16, and from neither names nor order: the same weights
loaded in float32 or bfloat16, or by a release that names them otherwise, have the same fingerprint.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

__all__ = ["weights_fingerprint"]

_SAMPLE = 256  # values of a parameter


@torch.no_grad()
def weights_fingerprint(model: nn.Module) -> str:
    """16 hexadecimal digits. Parameters that are not loaded (offloaded to "meta") count by their shapes alone."""
    parts = sorted(_digest(parameter) for parameter in model.parameters())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _digest(parameter: Tensor) -> bytes:
    digest = hashlib.sha256(str(tuple(parameter.shape)).encode())
    if parameter.device.type != "meta" and parameter.numel():
        inner = getattr(parameter.data, "__tensor_flatten__", None)
        if inner is not None:  # torchao's: made of plain tensors
            for name in sorted(inner()[0]):
                digest.update(_digest(getattr(parameter.data, name)))
            return digest.digest()
        values = parameter.detach().reshape(-1)[:: max(1, parameter.numel() // _SAMPLE)]
        if values.is_floating_point():
            values = values.to(torch.bfloat16)
        digest.update(values.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.digest()
