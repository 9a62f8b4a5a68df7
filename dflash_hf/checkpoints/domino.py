"""Reader of Domino drafters, by SpecForge and Model-Optimizer: z-lab's layout and a GRU that corrects the logits.

With ``shift_label`` slot k predicts the token after its own place, and the first correction falls on slot
``pure_draft_prefix_len``; without it slots predict their own place, one slot later. Either way a block of B gives B - 1
drafts. The two writers' defaults for both keys contradict each other, so neither is guessed.
Source: sgl-project/SpecForge at a6b6b02, ``specforge/modeling/draft/domino.py``; NVIDIA/Model-Optimizer at a2fbac7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.own import read_own_parts, rows_of
from dflash_hf.checkpoints.reading import Reading, canonical_names
from dflash_hf.checkpoints.zlab import RENAMES, finish, read_zlab_body
from dflash_hf.errors import CheckpointError

__all__ = ["read"]

_HEAD = (("prefix_gru.", "head.prefix_gru."), ("embed_proj.", "head.embed_proj."))
_CORRECTION = "head.embed_proj.2.weight"


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a Domino checkpoint."""
    fields = Fields(config, "Domino's writers")
    body = read_zlab_body(fields, swa=True)
    names = canonical_names(tensors, (*RENAMES, *_HEAD))
    shifted = _required(fields, "shift_label", fields.flag("shift_label", None, drafter=True))
    prefix = _required(
        fields, "pure_draft_prefix_len", fields.integer("pure_draft_prefix_len", None, minimum=0, drafter=True)
    )
    body["head"] = {
        "kind": "gru",
        "hidden": fields.integer("gru_hidden_dim", drafter=True),
        "bottleneck": fields.integer("emb_dim", drafter=True),
        "first_corrected": prefix + (0 if shifted else 1),
    }
    body["first_slot"] = 0 if shifted else 1
    body["num_draft_tokens"] = body["block_size"] - 1
    body |= read_own_parts(body, tensors, names)
    body["vocab_size"] = body["vocab_size"] or rows_of(tensors, names, _CORRECTION)
    return finish(fields, body, names)


def _required(fields: Fields, key: str, value: Any) -> Any:
    if value is None:
        raise CheckpointError(
            f"config.json has no dflash_config.{key}: SpecForge and Model-Optimizer, which write Domino drafters, take "
            "opposite defaults for it; add the value of the training config"
        )
    return value
