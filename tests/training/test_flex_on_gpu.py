"""The compiled FlexAttention kernel against the dense mask: what a GPU trains with by default.

On a CPU the same layouts are compared through FlexAttention's uncompiled form (``test_blocks``, ``test_visibility``).
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.target.view import view_target
from dflash_hf.training.anchors import valid_anchors
from dflash_hf.training.blocks import draft_hidden
from dflash_hf.training.packs import Pack, make_pack
from tests.scripted import tiny_config
from tests.tiny import tiny_target
from tests.training.packed import document, features

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: python -m pytest -m gpu"),
]
DOCUMENTS = [document(230, 5, "a"), document(141, 20, "b"), document(33, 7, "c")]  # several kernel blocks of 128 each
RULES = {
    "bidirectional": {},
    "causal": {"layer_causal": [True] * 2},
    "windows": {"layer_windows": [40, None]},
    "causal windows": {"layer_causal": [True, False], "layer_windows": [7, 150]},
}


def compared(rule: str, precision: torch.dtype, device: str = "cuda") -> list[tuple[list[Tensor], list[Tensor]]]:
    """Outputs, and gradients by every weight, of (flex, dense)."""
    torch.manual_seed(0)
    target = tiny_target().to(device)
    drafter = DFlashDrafter(tiny_config(target, **RULES[rule])).to(device).eval()
    view, pack = view_target(target), pack_of().to(device)
    sought = torch.randn(len(pack.ids), 8, drafter.config.hidden_size, generator=torch.Generator().manual_seed(1))
    outputs, gradients = [], []
    for form in ("flex", "dense"):
        half = torch.autocast(device, precision) if precision != torch.float32 else nullcontext()
        with half:
            hidden = draft_hidden(drafter, view, pack, form)
        loss = (hidden.float() * sought.to(device)).sum()
        outputs.append([hidden.detach().float()])
        gradients.append(list(torch.autograd.grad(loss, list(drafter.parameters()))))
    return [(outputs[0], outputs[1]), (gradients[0], gradients[1])]


def pack_of() -> Pack:
    made = [features(doc) for doc in DOCUMENTS]
    return make_pack(DOCUMENTS, made, [valid_anchors(doc) for doc in DOCUMENTS], slots=8, mask_token_id=1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("precision", "share"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)], ids=str)
def test_the_compiled_kernel_gives_the_outputs_and_gradients_of_the_dense_mask(rule, precision, share):
    """Within ``share`` of each tensor's norm: a wrong mask is off by its own size."""
    for flex, dense in compared(rule, precision):
        for mine, theirs in zip(flex, dense, strict=True):
            assert torch.isfinite(mine).all()
            assert float((mine - theirs).norm()) <= share * float(theirs.norm()) + 1e-6
