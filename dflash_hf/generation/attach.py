"""``attach``: let ``model.generate`` take a DFlash drafter, without patching any class or module.

``attach`` sets two attributes on the *instance*: ``generate``, which recognises ``assistant=``, ``assistant_model=``
or the attached default and otherwise calls the stock method unchanged; and ``_get_candidate_generator``, so that
``speculation_type="dflash"`` runs transformers' own assisted loop with our drafting engine. ``detach`` removes both.
The drafter is never a submodule: it is in no ``state_dict`` and in no saved file.
"""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import DFlashError, OptionsError, UnsupportedCallError
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.generation.decode import generate as dflash_generate
from dflash_hf.generation.record import remember
from dflash_hf.generation.refusals import refusal
from dflash_hf.options import DFlashOptions
from dflash_hf.target import host
from dflash_hf.target.pairing import check_pair
from dflash_hf.target.view import model_name, public_name
from dflash_hf.trace import Trace

__all__ = ["attach", "detach"]

_STATE = "_dflash_attached"


class _Attached:
    """What an attached model remembers. Copies of the model share it; a pickled model comes back without it."""

    def __init__(self, drafter: DFlashDrafter | None) -> None:
        self.drafter = drafter
        self.warned: set[str] = set()

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Attached:
        return _Attached(self.drafter)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Attached, (None,))


def attach(model: PreTrainedModel, drafter: DFlashDrafter | None = None) -> PreTrainedModel:
    """Teach this model object to draft.

    Args:
        model: a causal LM; returned for chaining. Attaching twice replaces the default drafter.
        drafter: drafts whenever ``generate`` is called without another assistant. Without one, only calls that
            name a drafter are drafted.

    Raises:
        IncompatiblePairError, UnsupportedTargetError: the drafter does not fit the model.
    """
    if drafter is not None:
        if not isinstance(drafter, DFlashDrafter):
            raise OptionsError(f"attach takes a DFlashDrafter, got {type(drafter).__name__}")
        check_pair(model, drafter)
    model.__dict__[_STATE] = _Attached(drafter)
    model.__dict__["generate"] = types.MethodType(generate, model)
    model.__dict__["_get_candidate_generator"] = types.MethodType(_get_candidate_generator, model)
    return model


def detach(model: PreTrainedModel) -> PreTrainedModel:
    """Undo :func:`attach`; a model that is not attached is left alone."""
    for name in (_STATE, "generate", "_get_candidate_generator"):
        model.__dict__.pop(name, None)
    return model


def generate(
    self: PreTrainedModel,
    inputs: Tensor | None = None,
    generation_config: GenerationConfig | None = None,
    *args: Any,
    assistant: Any = None,
    assistant_model: Any = None,
    dflash: DFlashOptions | Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """``transformers``' ``generate``, with ``assistant=`` taking a DFlash drafter and ``dflash=`` its options.

    Raises:
        DFlashError: an assistant was named and this call cannot be drafted; raised before any work.
    """
    stock = type(self).generate
    named = assistant if assistant is not None else assistant_model
    if assistant is not None and not isinstance(assistant, DFlashDrafter):
        raise OptionsError(f"assistant= takes a DFlashDrafter, got {type(assistant).__name__}")
    attached: _Attached | None = self.__dict__.get(_STATE)
    default = attached.drafter if attached is not None else None
    if isinstance(named, DFlashDrafter) and kwargs.get("speculation_type") == "dflash":
        check_pair(self, named)
        return stock(self, inputs, generation_config, *args, assistant_model=named, **kwargs)
    if not isinstance(named, DFlashDrafter) and (named is not None or default is None or "custom_generate" in kwargs):
        if named is not None:
            kwargs["assistant_model"] = named
        return stock(self, inputs, generation_config, *args, **kwargs)

    kwargs.pop("speculation_type", None)
    kwargs.pop("assistant_tokenizer", None)
    drafter = named if isinstance(named, DFlashDrafter) else default
    try:
        prepared = _prepare(self, drafter, inputs, generation_config, args, dflash, kwargs)
    except DFlashError as error:
        if isinstance(named, DFlashDrafter) or isinstance(error, OptionsError):
            raise
        assert attached is not None
        _say_once(self, attached, str(error))
        return stock(self, inputs, generation_config, *args, **kwargs)
    return stock(self, inputs, **prepared)


def _prepare(
    model: PreTrainedModel,
    drafter: DFlashDrafter | None,
    inputs: Tensor | None,
    config: GenerationConfig | None,
    args: tuple[Any, ...],
    dflash: DFlashOptions | Mapping[str, Any] | None,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """The arguments with which the host's ``generate`` runs our loop. Raises before any work."""
    assert drafter is not None
    if args:
        raise UnsupportedCallError("a drafted call takes inputs and generation_config by place, all else by name")
    if "custom_generate" in kwargs:
        raise UnsupportedCallError("custom_generate and a DFlash drafter exclude each other; pass one of them")
    check_pair(model, drafter)
    call = dict(kwargs)
    options = {key: value for key, value in call.items() if key not in _HOST_ARGUMENTS}
    effective, forward = host.effective_config(model, config, options)
    cache = host.cache_of(model, forward)
    reason = refusal(effective, rows=_rows(inputs, forward), cache=cache, synced=bool(call.get("synced_gpus")))
    if reason is not None:
        raise UnsupportedCallError(f"{model_name(model)} with a DFlash drafter: {reason}.")
    if effective.stop_strings is not None:
        call, config = _stop_strings_as_criterion(model, call, config, effective.stop_strings)
    call.pop("tokenizer", None)
    merged = _merged_options(model, config, call, dflash, effective)
    return {
        **call,
        "generation_config": config,
        "custom_generate": dflash_generate,
        "assistant": drafter,
        "dflash": merged,
        "dflash_streamer": call.get("streamer"),
    }


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
    }
)  # what the host's generate takes by name and keeps out of the generation config


def _rows(inputs: Tensor | None, forward: Mapping[str, Any]) -> int:
    for tensor in (inputs, forward.get("input_ids"), forward.get("inputs_embeds")):
        if tensor is not None:
            return int(tensor.shape[0])
    return 1


def _stop_strings_as_criterion(
    model: PreTrainedModel, call: dict[str, Any], config: GenerationConfig | None, stop_strings: Any
) -> tuple[dict[str, Any], GenerationConfig | None]:
    """Stop strings as a criterion of our own: the host drops the tokenizer on this path and would then raise."""
    tokenizer = call.get("tokenizer")
    if tokenizer is None:
        raise UnsupportedCallError("stop_strings need the tokenizer: generate(..., tokenizer=tokenizer)")
    criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)
    call = {**call, "stopping_criteria": StoppingCriteriaList([*(call.get("stopping_criteria") or []), criterion])}
    call.pop("stop_strings", None)
    if config is not None:
        config = copy.deepcopy(config)
        config.stop_strings = None
    if model.generation_config.stop_strings is not None:
        call["stop_strings"] = None  # said explicitly, or the host would take the model's default again
    return call, config


def _merged_options(
    model: PreTrainedModel,
    config: GenerationConfig | None,
    call: Mapping[str, Any],
    dflash: DFlashOptions | Mapping[str, Any] | None,
    effective: GenerationConfig,
) -> DFlashOptions:
    """The call's options, with an explicitly set ``num_assistant_tokens`` as a cap."""
    options = DFlashOptions.of(dflash if dflash is not None else getattr(effective, "dflash", None))
    sources = (call.get("num_assistant_tokens"), getattr(config, "num_assistant_tokens", None),
               model.generation_config.num_assistant_tokens)  # fmt: skip
    explicit = next((cap for cap in sources if cap is not None), None)
    caps = [cap for cap in (options.max_draft_tokens, explicit) if cap is not None]
    return replace(options, max_draft_tokens=min(caps)) if caps else options


def _say_once(model: PreTrainedModel, attached: _Attached, reason: str) -> None:
    """A call that only has a default drafter runs undrafted: one warning per reason, and the trace says so."""
    remember(Trace(target=public_name(model_name(model)), loop="plain", fallback=reason))
    if reason not in attached.warned:
        attached.warned.add(reason)
        warnings.warn(f"running without the attached drafter: {reason}", stacklevel=4)


def _get_candidate_generator(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
    """The host asks for a candidate generator: ours for a DFlash drafter, its own for all else."""
    drafter = kwargs.get("assistant_model")
    if not isinstance(drafter, DFlashDrafter):
        return type(self)._get_candidate_generator(self, *args, **kwargs)
    config: GenerationConfig = kwargs["generation_config"]
    return DFlashCandidateGenerator(drafter, check_pair(self, drafter), max_length=config.max_length)
