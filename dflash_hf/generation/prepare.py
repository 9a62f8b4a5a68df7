"""From what a user wrote in ``generate(...)`` to the arguments with which the host runs our loop, before any work."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import OptionsError, UnsupportedCallError
from dflash_hf.generation.decode import generate as dflash_generate
from dflash_hf.generation.memory import ContextMemory
from dflash_hf.generation.refusals import STREAMED_ROWS, refusal, refusal_in_the_hosts_loop
from dflash_hf.options import DFlashOptions
from dflash_hf.target import host
from dflash_hf.target.adapters import prepends_virtual_tokens
from dflash_hf.target.pictures import mismatched_pictures
from dflash_hf.target.state import cached_length
from dflash_hf.target.taps import RAW_LAST, reads_raw_last
from dflash_hf.target.view import TargetView

__all__ = ["arguments_for_our_loop", "check_hosts_loop", "wants_hosts_loop"]

# What the host's generate takes by name and keeps out of the generation config.
_HOST_ARGUMENTS = frozenset(
    {
        "logits_processor",
        "stopping_criteria",
        "prefix_allowed_tokens_fn",
        "synced_gpus",
        "streamer",
        "negative_prompt_ids",
        "negative_prompt_attention_mask",
        "tokenizer",
        "assistant_tokenizer",
        "custom_generate",
    }
)


def arguments_for_our_loop(
    view: TargetView,
    drafter: DFlashDrafter,
    inputs: Tensor | None,
    config: GenerationConfig | None,
    dflash: DFlashOptions | Mapping[str, Any] | None,
    call: dict[str, Any],
    memory: ContextMemory | None = None,
) -> dict[str, Any]:
    """Keyword arguments for the host's ``generate``, which then calls ours.

    ``memory`` is for calls whose cache outlives them: a user's own, or one that is returned.

    Raises:
        UnsupportedCallError: the call asks for something that is not drafted.
        OptionsError: ``dflash`` or ``num_assistant_tokens`` cannot be used as given.
    """
    if call.get("custom_generate") is not None:
        raise UnsupportedCallError("custom_generate and a DFlash drafter exclude each other; pass one of them")
    model = view.model
    effective, forward = _effective(model, config, call)
    options = _options(model, config, call, dflash, effective)
    cache = host.cache_of(model, forward)
    if (reason := _refusal(view, drafter, effective, inputs, forward, call)) is not None:
        raise UnsupportedCallError(f"{view.public_name} with a DFlash drafter: {reason}.")
    call = {key: value for key, value in call.items() if key not in _OURS}
    if effective.stop_strings is not None:
        call, config = _stop_strings_as_criterion(model, call, config, effective.stop_strings)
    streamer = call.get("streamer")
    call.pop("tokenizer", None)
    return {
        **call,
        "generation_config": config,
        "custom_generate": dflash_generate,
        "assistant": drafter,
        "dflash": options,
        "dflash_streamer": streamer,
        "dflash_memory": memory,
        "dflash_seen": cache is not None or bool(effective.return_dict_in_generate),
    }


def _refusal(
    view: TargetView,
    drafter: DFlashDrafter,
    effective: GenerationConfig,
    inputs: Tensor | None,
    forward: dict[str, Any],
    call: Mapping[str, Any],
) -> str | None:
    """Why our loop cannot draft this call, or None: all that is known before the host prepares it."""
    model = view.model
    cache, rows = host.cache_of(model, forward), _rows(inputs, forward) * (effective.num_return_sequences or 1)
    reason = refusal(
        effective,
        cache=cache,
        keeps_cache=host.keeps_cache(model),
        synced=host.synchronises(model, call.get("synced_gpus")),
        static=host.static_cannot(model),
        virtual=prepends_virtual_tokens(model),
    )
    empty = reason is None and (cache is None or cached_length(cache) == 0)
    if empty:  # a filled one may hold pictures of earlier turns
        reason = mismatched_pictures(model.config, _ids(inputs, forward), forward)
    if reason is None and rows > 1 and call.get("streamer") is not None:  # before the host shows it the prompt
        reason = STREAMED_ROWS
    if reason is None and reads_raw_last(drafter.config, view.num_layers) and host.compiles(model, effective, cache):
        reason = RAW_LAST
    return reason


_OURS = frozenset({"speculation_type", "assistant_tokenizer", "custom_generate"})


def wants_hosts_loop(model: PreTrainedModel, config: GenerationConfig | None, call: Mapping[str, Any]) -> bool:
    """Whether ``speculation_type="dflash"`` is asked for, in the call or in its generation config."""
    said = call.get("speculation_type") or getattr(config, "speculation_type", None)
    return (said or getattr(model.generation_config, "speculation_type", None)) == "dflash"


def check_hosts_loop(
    view: TargetView,
    drafter: DFlashDrafter,
    inputs: Tensor | None,
    config: GenerationConfig | None,
    dflash: Any,
    call: dict[str, Any],
) -> None:
    """Refuse what the host's assisted loop would answer with other text than plain decoding.

    Raises:
        UnsupportedCallError: by name.
    """
    model = view.model
    effective, forward = _effective(model, config, call)
    reason = "recurrent layers, whose state that loop cannot put back" if host.keeps_recurrent_state(model) else None
    reason = reason or (RAW_LAST if reads_raw_last(drafter.config, view.num_layers) else None)
    reason = reason or ("it takes no dflash= options" if dflash is not None else None)
    reason = reason or refusal_in_the_hosts_loop(effective, call, cache=host.cache_of(model, forward))
    rows = _rows(inputs, forward) * (effective.num_return_sequences or 1)
    if rows > 1:
        reason = reason or "several rows"
    reason = reason or refusal(
        effective,
        keeps_cache=host.keeps_cache(model),
        synced=host.synchronises(model, call.get("synced_gpus")),
        virtual=prepends_virtual_tokens(model),
    )
    if reason is not None:
        raise UnsupportedCallError(
            f"{view.public_name} with a DFlash drafter in transformers' own loop "
            f'(speculation_type="dflash"): {reason}. Leave speculation_type out, and our loop runs.'
        )


def _effective(
    model: PreTrainedModel, config: GenerationConfig | None, call: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    options = {key: value for key, value in call.items() if key not in _HOST_ARGUMENTS}
    effective, forward = host.effective_config(model, config, options)
    return effective, forward


def _ids(inputs: Tensor | None, forward: Mapping[str, Any]) -> Tensor | None:
    ids = inputs if inputs is not None else forward.get("input_ids")
    return ids if isinstance(ids, Tensor) else None


def _rows(inputs: Tensor | None, forward: Mapping[str, Any]) -> int:
    named = [each for each in (inputs, forward.get("input_ids"), forward.get("inputs_embeds")) if each is not None]
    # Without ids the host makes a row of the begin-of-text id for each row of whatever else it is given.
    for tensor in named or [value for value in forward.values() if isinstance(value, Tensor)]:
        return int(tensor.shape[0]) if tensor.dim() > 1 else 1
    return 1


def _stop_strings_as_criterion(
    model: PreTrainedModel, call: dict[str, Any], config: GenerationConfig | None, stop_strings: Any
) -> tuple[dict[str, Any], GenerationConfig | None]:
    """Stop strings as a criterion of our own: the host drops the tokenizer on this path and would then raise."""
    tokenizer = call.get("tokenizer")
    if tokenizer is None:
        raise UnsupportedCallError("stop_strings need the tokenizer: generate(..., tokenizer=tokenizer)")
    criteria = list(call.get("stopping_criteria") or [])
    if not any(type(each) is StopStringCriteria for each in criteria):  # the host, too, lets the user's own stand alone
        criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings))
    call = {**call, "stopping_criteria": StoppingCriteriaList(criteria)}
    call.pop("stop_strings", None)
    if config is not None:
        config = copy.deepcopy(config)
        config.stop_strings = None
    if model.generation_config.stop_strings is not None:
        call["stop_strings"] = None  # said explicitly, or the host would take the model's default again
    return call, config


def _options(
    model: PreTrainedModel,
    config: GenerationConfig | None,
    call: Mapping[str, Any],
    dflash: DFlashOptions | Mapping[str, Any] | None,
    effective: GenerationConfig,
) -> DFlashOptions:
    """The call's options, with an explicitly set ``num_assistant_tokens`` as a cap."""
    options = DFlashOptions.of(dflash if dflash is not None else getattr(effective, "dflash", None))
    sources = (call, vars(config) if config is not None else {}, vars(model.generation_config))
    explicit = next((cap for each in sources if (cap := each.get("num_assistant_tokens")) is not None), None)
    if explicit is None:
        return options
    if isinstance(explicit, bool) or not isinstance(explicit, int) or explicit < 0:
        raise OptionsError(f"num_assistant_tokens must be a whole number of at least 0, got {explicit!r}")
    cap = options.max_draft_tokens
    return replace(options, max_draft_tokens=explicit if cap is None else min(cap, explicit))
