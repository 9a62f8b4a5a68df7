"""``TargetView``: the parts of a causal LM that drafting needs, found once, without changing the model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dflash_hf.errors import UnsupportedTargetError
from dflash_hf.target.devices import computing_device
from dflash_hf.target.embedding import embed_as_module, embed_raw, hidden_rows
from dflash_hf.target.plain_weights import unreadable
from dflash_hf.target.positions import room_for_drafts
from dflash_hf.target.scales import embedding_scale, logit_multiplier, logit_softcap

__all__ = ["TargetView", "model_name", "public_name", "view_target"]

_LAYER_LISTS = ("layers", "h", "blocks")  # what decoder stacks call their list of layers
_INSIDE = ("model", "decoder", "language_model")  # where a stack may stand inside what `get_decoder` gives
_NEEDED = (  # in the words of an error, in the order in which `view_target` looks
    f"list of decoder layers (an nn.ModuleList called {', '.join(_LAYER_LISTS)} in what get_decoder() gives, or in its "
    f"{', '.join(_INSIDE)})",
    "embedding (get_input_embeddings())",
    "LM head (get_output_embeddings())",
    "width (hidden_size in its config)",
)


@dataclass(frozen=True, slots=True)
class TargetView:
    """Handles into one target. ``decoder`` is the stack whose output, after the final norm, feeds the head."""

    model: PreTrainedModel
    decoder: nn.Module
    layers: nn.ModuleList
    embedding: nn.Module
    head: nn.Module
    text_config: Any  # looked up once: every round reads it
    hidden_size: int
    name: str

    @property
    def public_name(self) -> str:
        """The name without this machine's folders: what files and traces may say."""
        return public_name(self.name)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm between the last layer and the head, under the names decoder stacks give it."""
        names = (
            "norm",
            "final_layernorm",
            "ln_f",
            "final_layer_norm",
            "norm_f",
            "embedding_norm",
        )  # the last is LFM2's
        return next((found for name in names if (found := getattr(self.decoder, name, None)) is not None), None)

    @property
    def layer_types(self) -> list[str] | None:
        """What the config calls each layer ("sliding_attention" ...), where it names them."""
        return getattr(self.text_config, "layer_types", None)

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding: ids from 0 to this number, less one, can be embedded."""
        rows = getattr(self.embedding, "num_embeddings", None)
        return int(rows) if rows is not None else int(self.text_config.vocab_size)

    @property
    def logit_columns(self) -> int:
        """Columns of the logits: the head's, where it says them, else the vocabulary's."""
        columns = getattr(self.head, "out_features", None)
        return int(columns) if columns is not None else self.vocab_rows

    @property
    def logit_multiplier(self) -> float:
        """What the target multiplies its head's output by: Granite's ``logits_scaling``, Cohere's ``logit_scale``."""
        return logit_multiplier(self.model.config)

    @property
    def logit_softcap(self) -> float | None:
        """The target's soft cap on its logits, after the multiplier."""
        return logit_softcap(self.model.config)

    @property
    def device(self) -> torch.device:
        """Where the target's inputs belong; ``model.device`` says "meta" of an offloaded one."""
        return computing_device(self.model)

    @property
    def head_device(self) -> torch.device:
        """Where logits come from: a drafter that borrows the head is best off there."""
        return computing_device(self.head, self.device)

    def hides_rows(self, source: str) -> str | None:
        """Why :meth:`embed` cannot give what a drafter of this ``source`` was trained on, or None."""
        return hidden_rows(self.embedding, source)

    def room(self, position: int, length: int, held: int) -> int | None:
        """How many tokens may be drafted here; see :func:`dflash_hf.target.positions.room_for_drafts`."""
        return room_for_drafts(self.text_config, position, length, held)

    def embed(self, token_ids: Tensor, source: str = "target") -> Tensor:
        """Embeddings [B, K, D] of ids [B, K], on the embedding's device, whatever the ids' is.

        ``source``: ``"target"`` as the target scales them, in its module and after it; ``"target_module"`` as its
        module alone does; ``"target_rows"`` its raw rows. Without a norm inside the module.
        """
        if source == "target_rows":
            return embed_raw(self.embedding, token_ids)
        embedded = embed_as_module(self.embedding, token_ids)
        scale = embedding_scale(self.model.config) if source == "target" else 1.0
        return embedded if scale == 1.0 else embedded * scale

    def project(self, hidden_states: Tensor) -> Tensor:
        """The target's LM head. The head is called, its weight never read: it may be quantised or offloaded.

        It gets what the target itself would give it: bitsandbytes' layers adopt the dtype of what they are given.
        """
        weight = next(self.head.parameters(), None)
        as_stored = weight is not None and unreadable(weight) in (None, "offloaded")
        dtype = weight.dtype if weight is not None and as_stored else self.model.dtype
        return self.head(hidden_states.to(computing_device(self.head, hidden_states.device), dtype))


def model_name(model: PreTrainedModel) -> str:
    """The name a person would call this model by: where it was loaded from, else its class."""
    return getattr(model.config, "_name_or_path", "") or model.name_or_path or type(model).__name__


def public_name(name: str) -> str:
    """A Hub id as it is; of a local folder only its last part.

    >>> public_name("org/model"), public_name("/data/models/SmolLM2-135M-Instruct")
    ('org/model', 'SmolLM2-135M-Instruct')
    """
    return Path(os.path.abspath(name)).name if Path(name).is_absolute() or Path(name).is_dir() else name


def view_target(model: PreTrainedModel) -> TargetView:
    """Find the parts of ``model``.

    Raises:
        UnsupportedTargetError: no decoder stack with a list of layers, no embedding or no head: not a causal LM
            whose layers can be tapped.
    """
    if hasattr(model, "get_base_model") and hasattr(model, "peft_config"):
        raise UnsupportedTargetError(
            f"the target is a {type(model).__name__}, which is peft's; attach and draft for the model inside it "
            "(model.get_base_model()), its adapters take part as they are set"
        )
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedTargetError(
            f"the target must be a loaded transformers model, got {type(model).__name__} ({model!r}); "
            "load it with AutoModelForCausalLM.from_pretrained."
        )
    name = model_name(model)
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedTargetError(
            f"{name} ({type(model).__name__}) is an encoder-decoder; DFlash drafts for decoder-only causal LMs. "
            "Call generate without the drafter."
        )
    decoder, layers = _find_decoder(model)
    embedding, head = _asked(model, "get_input_embeddings"), _asked(model, "get_output_embeddings")
    text_config = model.config.get_text_config()
    width = getattr(text_config, "hidden_size", None)
    parts = (layers, embedding, head, width)
    if missing := [said for said, found in zip(_NEEDED, parts, strict=True) if found is None]:
        raise UnsupportedTargetError(
            f"{name} ({type(model).__name__}) has no {', and no '.join(missing)} that can be found; load a causal LM "
            "with AutoModelForCausalLM, or, where the model brings code of its own, let that code name these parts; "
            "or call generate without the drafter."
        )
    assert layers is not None and width is not None  # they would have been missing
    return TargetView(model, decoder, layers, embedding, head, text_config, int(width), name)


def _asked(model: PreTrainedModel, method: str) -> Any:
    """What a model says of itself; None where it does not know: the host's own answer raises then."""
    try:
        return getattr(model, method)()
    except (NotImplementedError, AttributeError):
        return None


def _find_decoder(model: PreTrainedModel) -> tuple[Any, nn.ModuleList | None]:
    """The decoder stack and its layers.

    Some models return themselves from ``get_decoder`` (Llama 4): look inside. ModernBERT's decoder returns its head,
    which is what it calls ``decoder``: look at its base model too.
    """
    found = _asked(model, "get_decoder")
    candidates = [model if found is None else found]
    candidates += [getattr(candidates[0], inner, None) for inner in _INSIDE]
    candidates.append(model.base_model)
    for candidate in candidates:
        for attribute in _LAYER_LISTS:
            layers = getattr(candidate, attribute, None)
            if isinstance(layers, nn.ModuleList):
                return candidate, layers
    return candidates[0], None
