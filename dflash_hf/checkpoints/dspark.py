"""Reader of DSpark drafters with a Qwen3 body: DeepSpec's, SpecForge's, Model-Optimizer's, NeMo's.

Every slot proposes: slot k predicts the token after its own place, so a block of B gives B drafts. DeepSpec ships an
embedding and a head of its own, the others borrow the target's; tensors decide. DeepSpec's "dflash" drafters are the
same with a rank of 0. Layer id -1 is the embedding's output.
LiquidAI's LFM2.5 drafters rotate pairs side by side, from descriptions: ``rope_is_neox_style`` says so, and an LFM
architecture without the key means it (Blaizzy/mlx-vlm, ``drafters/qwen3_dspark/config.py``).
Source: deepseek-ai/DeepSpec at afdfa7c, ``deepspec/modeling/dspark``; sgl-project/SpecForge at a6b6b02.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.described import from_descriptions
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.markov_keys import HEAD_NAMES, TABLE, read_markov
from dflash_hf.checkpoints.own import read_own_parts
from dflash_hf.checkpoints.reading import Reading, canonical_names
from dflash_hf.checkpoints.zlab import RENAMES, finish, read_zlab_body

__all__ = ["read"]


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a DSpark checkpoint."""
    fields = Fields(config, "DSpark's writers")
    body = read_zlab_body(fields, lowest_tap=-1, interleaved=True, swa=True)
    if _is_lfm_without_key(fields):
        fields.filled("rope_is_neox_style", False, "mlx-vlm's rule for LFM architectures")
        body["rope_interleaved"] = True
    if body["rope_interleaved"]:
        fields.notes.append(from_descriptions("mlx-vlm, llama.cpp"))
    names = canonical_names(tensors, (*RENAMES, *HEAD_NAMES))
    body["head"] = read_markov(fields, names)
    body["first_slot"] = 0
    body |= read_own_parts(body, tensors, names, tables=(TABLE,))
    return finish(fields, body, names, ("qwen3", "dspark"))  # SpecForge's class has a model_type of its own


def _is_lfm_without_key(fields: Fields) -> bool:
    stated = any(fields.drafter(key) is not None for key in ("rope_is_neox_style", "is_neox_style"))
    named = fields.top.get("architectures")
    listed = named if isinstance(named, list) else [named]
    return not stated and any("lfm" in str(name).lower() for name in listed)
