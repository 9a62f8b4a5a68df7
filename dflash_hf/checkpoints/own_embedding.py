"""Reader of z-lab's layout with an embedding or an LM head in the files: what is beside the plain drafter, read apart.

The own embedding is looked up as it is, without a target's scale (``input_embedding_scale`` still applies where the
config has it); the own head is whole, or lists some of the target's ids by offsets in ``d2t``. So vLLM reads them.
Source: vllm-project/vllm, ``model_executor/models/qwen3_dflash.py``; ikawrakow/ik_llama.cpp pull request 2062.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dflash_hf.checkpoints import modelopt, zlab
from dflash_hf.checkpoints.fields import Fields
from dflash_hf.checkpoints.files import TensorTable
from dflash_hf.checkpoints.own import read_own_parts
from dflash_hf.checkpoints.reading import Reading, canonical_names
from dflash_hf.checkpoints.reduced_head import check_head, is_list, read_vocabulary, without_lists

__all__ = ["read"]

_OWN = ("embed_tokens.weight", "lm_head.weight")


def read(config: Mapping[str, Any], tensors: TensorTable) -> Reading:
    """Translate a plain drafter with own parts; its windows are Model-Optimizer's where it says ``use_swa``."""
    fields = Fields(config, "the writer of z-lab's layout")
    names = canonical_names(without_lists(tensors), zlab.RENAMES)
    own = {name: found for name, found in names.items() if found in _OWN}
    rest = {name: info for name, info in tensors.items() if name not in own and not is_list(name)}
    windowed = fields.nested.get("use_swa") is not None or fields.nested.get("swa_window_size") is not None
    plain = (modelopt if windowed else zlab).read(config, rest)
    body: dict[str, Any] = {"vocab_size": plain.config.vocab_size}
    body |= read_own_parts(body, tensors, own)
    check_head(fields, body, tensors)
    made = read_vocabulary(tensors, body["vocab_size"])
    described = plain.config
    described.vocab_size = described.stored_vocab_size = body["vocab_size"]
    described.embedding = body.get("embedding", described.embedding)
    described.draft_vocab_size = body.get("draft_vocab_size")
    described.inherits_logit_scale &= described.draft_vocab_size is None
    described.reduced_vocabulary = bool(made)
    notes = list(plain.notes)
    if described.embedding == "own":
        notes.append(
            "the files' own embedding is looked up unscaled, as vLLM does; their writer's rule is not recorded"
        )
    return replace(plain, names={**plain.names, **own}, made={**plain.made, **made}, notes=tuple(notes))
