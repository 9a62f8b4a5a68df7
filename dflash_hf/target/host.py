"""Every use of transformers' private names, in one place, with what each release calls them.

Tested on transformers 5.18 to 5.24. ``cache`` was ``past_key_values`` before 5.24.
"""

from __future__ import annotations

import copy
import inspect
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StaticCache
from transformers.cache_utils import StaticLayer

__all__ = [
    "cache_argument",
    "cache_key",
    "cache_of",
    "chunks_go_on",
    "compiles",
    "decoding_mode",
    "effective_config",
    "explicit_draft_cap",
    "extend",
    "forward_of",
    "keeps_cache",
    "keeps_recurrent_state",
    "padding",
    "prefill",
    "prefix_rule",
    "returned_cache_key",
    "static_cannot",
    "synchronises",
    "verify",
]

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")  # the last is Mamba's before 5.24
_DEFAULT_ASSISTANT_TOKENS = 20  # what num_assistant_tokens becomes when nobody sets it


def cache_key(model: PreTrainedModel) -> str:
    """What this release calls the cache argument."""
    kind: Any = type(model)
    return cache_argument(kind)


def returned_cache_key(model: PreTrainedModel) -> str:
    """What this release calls the cache in what ``generate`` returns."""
    return "cache" if cache_key(model) == "cache" else "past_key_values"


@cache
def cache_argument(kind: Any) -> str:
    """What the forward of a class of modules calls the cache."""
    parameters = inspect.signature(kind.forward).parameters
    return next((name for name in _CACHE_NAMES if name in parameters), "cache")


def cache_of(model: PreTrainedModel, model_kwargs: dict[str, Any]) -> Any:
    """The cache that ``generate`` prepared or the user passed; None where the model uses none."""
    return model_kwargs.get(cache_key(model), model_kwargs.get("past_key_values"))


def effective_config(model: PreTrainedModel, config: GenerationConfig | None, options: dict[str, Any]) -> Any:
    """The generation config this call would run with, and what is left over for the model's forward."""
    return model._prepare_generation_config(config, **options)


def decoding_mode(config: GenerationConfig) -> str:
    """``"greedy_search"``, ``"sample"``, ``"beam_search"`` ... as the host names the mode of this call."""
    return str(config.get_generation_mode(None).value)


def explicit_draft_cap(config: GenerationConfig) -> int | None:
    """``num_assistant_tokens`` of a prepared config, unless it is the host's default."""
    cap = config.num_assistant_tokens
    return None if cap == _DEFAULT_ASSISTANT_TOKENS else cap


def keeps_cache(model: PreTrainedModel) -> bool:
    """Whether ``generate`` gives this model a cache that can be cropped: some bring their own kind, or none."""
    takes = set(_CACHE_NAMES) & set(inspect.signature(model.forward).parameters)
    return bool(takes) and bool(model._supports_default_dynamic_cache())


def keeps_recurrent_state(model: PreTrainedModel) -> bool:
    """Whether the host counts this model among those whose state cannot go back; it assists none of them."""
    return bool(getattr(model, "_is_stateful", False))


def synchronises(model: PreTrainedModel, asked: bool | None) -> bool:
    """Whether the host would keep devices in step: asked for, or on by itself under ZeRO-3 and FSDP."""
    if asked is not None:
        return asked
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not several or torch.distributed.get_world_size() < 2:
        return False
    from transformers.distributed.fsdp import is_fsdp_managed_module
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

    return bool(is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model))


def prefill(model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, kwargs: dict[str, Any]) -> Any:
    """The host's own prefill: cache continuation, chunks, embeddings and multimodal arguments included."""
    return model._prefill(input_ids, config, kwargs)


def extend(model: PreTrainedModel, outputs: Any, kwargs: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Masks, positions and token types grown by ``tokens``; the arguments given are not changed.

    Grown several tokens at once, token types would repeat the last *several* of the prompt and a cross-attention mask
    would grow by one row (5.18 to 5.24); plain decoding grows by one token at a time, and so do these calls.
    """
    kwargs = copy.copy(kwargs)
    single = any(kwargs.get(name) is not None for name in ("token_type_ids", "cross_attention_mask"))
    for step in [1] * tokens if single else [tokens]:
        kwargs = model._update_model_kwargs_for_generation(outputs, kwargs, num_new_tokens=step)
    return kwargs


def padding(config: GenerationConfig, criteria: Any) -> int | None:
    """What finished rows of a batch go on as: the padding id, or None where they decode on (no end-of-text id)."""
    token = config._pad_token_tensor
    ends = any(hasattr(each, "eos_token_id") for each in criteria)
    return int(token) if ends and token is not None else None


def chunks_go_on() -> bool:
    """Whether a prefill in chunks goes on from what the cache holds; releases before 5.24 read the prompt again."""
    return hasattr(StaticLayer, "crop")  # came with it


def prefix_rule(processor: Any) -> tuple[Any, int]:
    """A ``PrefixConstrainedLogitsProcessor``'s function of (prompt, ids), and how many rows it counts as one prompt."""
    return processor._prefix_allowed_tokens_fn, processor._num_beams


def static_cannot(model: PreTrainedModel) -> str | None:
    """Why this model's static cache could not be drafted with, or None."""
    if not hasattr(StaticLayer, "crop"):
        return "a static cache; this release of transformers cannot drop tokens from one (5.24 can)"
    text = model.config.get_text_config()
    fixed = getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None)
    kinds = set(getattr(text, "layer_types", None) or (["sliding_attention"] if fixed else []))
    if others := sorted(kinds - {"full_attention"}):
        return f"a static cache with layers of type {', '.join(others)}, which cannot drop tokens from one"
    return None


def compiles(model: PreTrainedModel, config: GenerationConfig, cache: Any) -> bool:
    """Whether plain decoding compiles its steps: over a static cache, where device and options let it.

    ``cache`` is the user's, or the one the host prepared; None where it will prepare what ``config`` names.
    """
    if cache is None and config.cache_implementation == "static":
        cache = StaticCache(model.config.get_text_config(decoder=True), max_cache_len=1)  # takes no memory until used
    valid = isinstance(cache, StaticCache) and model._valid_auto_compile_criteria({cache_key(model): cache}, config)
    return bool(valid)


def forward_of(model: PreTrainedModel, config: GenerationConfig, kwargs: dict[str, Any]) -> Any:
    """What plain decoding would call for its steps: the model, or over a static cache the compiled call of it."""
    if not compiles(model, config, cache_of(model, kwargs)):
        return model
    from transformers.utils.output_capturing import maybe_install_capturing_hooks

    # What the host does once, when hidden states are first asked for; inside a compiled graph it could not.
    maybe_install_capturing_hooks(model.get_decoder())
    return model.get_compiled_call(config.compile_config)


def verify(
    model: PreTrainedModel,
    forward: Any,  # of `forward_of`
    sequence: Tensor,  # [1, S + J] committed ids and the draft
    drafted: int,  # J
    outputs: Any,  # of the previous forward
    kwargs: dict[str, Any],  # describing the S committed ids
    **asked: Any,
) -> Any:
    """One target forward over the anchor and the draft: outputs with ``logits`` [1, J + 1, V]."""
    described = extend(model, outputs, kwargs, drafted) if drafted else kwargs
    inputs = model.prepare_inputs_for_generation(
        sequence, next_sequence_length=drafted + 1, is_first_iteration=False, **described
    )
    if "logits_to_keep" in inputs:
        inputs["logits_to_keep"] = drafted + 1
    with _decode_mode(model), torch.no_grad():
        return forward(**{**inputs, **asked}, return_dict=True)


def _decode_mode(model: PreTrainedModel) -> AbstractContextManager[Any]:
    """The host's own switch for decoding steps (it picks expert kernels), where the release has one."""
    switch = getattr(model, "_optimize_model_for_decode", None)
    return nullcontext() if switch is None else switch()
