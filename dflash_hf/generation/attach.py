"""``attach``: let ``model.generate`` take a DFlash drafter, without patching any class or module.

``attach`` sets two attributes on the *instance*: ``generate``, which recognises ``assistant=``, ``assistant_model=``
or the attached default and hands every other call to what was there before; and ``_get_candidate_generator``, so that
``speculation_type="dflash"`` runs transformers' own assisted loop with our drafting engine. ``detach`` puts back what
was there. The drafter is never a submodule: it is in no ``state_dict`` and in no saved file.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import DFlashError, OptionsError, UnsupportedCallError, warn
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.generation.memory import ContextMemory
from dflash_hf.generation.prepare import arguments_for_our_loop, check_hosts_loop, wants_hosts_loop
from dflash_hf.generation.record import forget, remember
from dflash_hf.generation.refusals import RowsRefusedError
from dflash_hf.options import DFlashOptions
from dflash_hf.target.host import explicit_draft_cap
from dflash_hf.target.pairing import check_pair, pair_view, warn_of_doubts
from dflash_hf.target.trial import try_out
from dflash_hf.target.view import TargetView, model_name, public_name
from dflash_hf.trace import Trace

__all__ = ["attach", "detach", "generate"]

_STATE = "_dflash_attached"


class _Attached:
    """What an attached model remembers. A copy of the model starts afresh with the same drafter; a pickle is plain."""

    def __init__(self, drafter: DFlashDrafter | None, before: dict[str, Any]) -> None:
        self.drafter = drafter
        self.before = before  # instance attributes that attach has covered
        self.warned: set[str] = set()  # reasons that were given once
        self.seen: weakref.WeakSet[DFlashDrafter] = weakref.WeakSet()  # other drafters that were looked at once
        self.memory = ContextMemory()

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Attached:
        return _Attached(self.drafter, {})

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Attached, (None, {}))


def attach(model: PreTrainedModel, drafter: DFlashDrafter | None = None) -> PreTrainedModel:
    """Teach this model object to draft.

    Args:
        model: a causal LM; returned for chaining. Attaching twice replaces the default drafter.
        drafter: drafts whenever ``generate`` is called without another assistant. Without one, only calls that
            name a drafter are drafted.

    Raises:
        IncompatiblePairError, UnsupportedTargetError: the drafter does not fit the model.
    """
    if drafter is not None and not isinstance(drafter, DFlashDrafter):
        raise OptionsError(f"attach takes a DFlashDrafter, got {type(drafter).__name__}")
    if drafter is not None:
        check_pair(model, drafter)
    elif not isinstance(model, PreTrainedModel):
        hint = "; of a PEFT model take get_base_model()" if hasattr(model, "get_base_model") else ""
        raise OptionsError(f"attach takes a loaded transformers model, got {type(model).__name__}{hint}")
    detach(model)
    ours = {
        "generate": types.MethodType(generate, model),
        "_get_candidate_generator": types.MethodType(_get_candidate_generator, model),
    }
    before = {name: model.__dict__[name] for name in ours if name in model.__dict__}
    model.__dict__.update(ours, **{_STATE: _Attached(drafter, before)})
    return model


def detach(model: PreTrainedModel) -> PreTrainedModel:
    """Undo :func:`attach`; a model that is not attached is left alone."""
    attached: _Attached | None = model.__dict__.pop(_STATE, None)
    if attached is not None:
        for name in ("generate", "_get_candidate_generator"):
            model.__dict__.pop(name, None)
        model.__dict__.update(attached.before)
    return model


def generate(
    self: PreTrainedModel,
    inputs: Tensor | None = None,
    generation_config: GenerationConfig | None = None,
    *args: Any,
    assistant: DFlashDrafter | None = None,
    assistant_model: Any = None,
    dflash: DFlashOptions | Mapping[str, Any] | None = None,
    dflash_memory: ContextMemory | None = None,
    **kwargs: Any,
) -> Any:
    """``transformers``' ``generate``, with ``assistant=`` taking a DFlash drafter and ``dflash=`` its options.

    ``dflash_memory`` keeps drafter contexts between turns of a conversation; an attached model has its own.

    Raises:
        DFlashError: an assistant was named and this call cannot be drafted; raised before any work.
    """
    attached: _Attached | None = self.__dict__.get(_STATE)
    if assistant is None and getattr(generation_config, "is_assistant", False):
        # The host asks this model for candidates, inside a call of another.
        return _plain(self, attached)(inputs, generation_config, *args, assistant_model=assistant_model, **kwargs)
    forget()
    named = _named_drafter(assistant, assistant_model)
    if assistant_model is not None and named is None:
        kwargs["assistant_model"] = assistant_model
    elsewhere = assistant_model is not None or kwargs.get("custom_generate") is not None
    drafter = named or (attached.drafter if attached is not None and not elsewhere else None)
    if drafter is None:
        if dflash is not None:
            DFlashOptions.of(dflash)  # a mistake in them is one without a drafter, too
        return _plain(self, attached)(inputs, generation_config, *args, **kwargs)

    def undrafted(reason: DFlashError) -> Any:
        if named is not None or attached is None or isinstance(reason, OptionsError):
            raise reason
        _say_once(self, attached, str(reason))
        return _plain(self, attached)(inputs, generation_config, *args, **kwargs)

    memory = dflash_memory if dflash_memory is not None or attached is None else attached.memory
    try:
        if args:
            raise UnsupportedCallError("a drafted call takes inputs and generation_config by place, all else by name")
        prepared = _prepared(self, attached, drafter, memory, inputs, generation_config, dflash, kwargs)
    except DFlashError as error:
        return undrafted(error)
    try:
        return type(self).generate(self, inputs, **prepared)
    except RowsRefusedError as error:  # known only once the host has made its processors; nothing has run yet
        return undrafted(error)


def _prepared(
    model: PreTrainedModel,
    attached: _Attached | None,
    drafter: DFlashDrafter,
    memory: ContextMemory | None,
    inputs: Tensor | None,
    config: GenerationConfig | None,
    dflash: DFlashOptions | Mapping[str, Any] | None,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """The arguments for the host's ``generate``, by whichever loop this call asks for."""
    view = _check_once(model, attached, drafter)
    if not wants_hosts_loop(model, config, kwargs):
        arguments = arguments_for_our_loop(view, drafter, inputs, config, dflash, kwargs, memory)
        try_out(view, drafter.config)  # when nothing else is against it: it runs the target
        return arguments
    if attached is None:
        raise UnsupportedCallError('speculation_type="dflash" needs the model attached: dflash_hf.attach(model)')
    check_hosts_loop(view, drafter, inputs, config, dflash, kwargs)
    return {**kwargs, "generation_config": config, "assistant_model": drafter}


def _named_drafter(assistant: Any, assistant_model: Any) -> DFlashDrafter | None:
    if assistant is not None and assistant_model is not None:
        raise OptionsError("assistant= and assistant_model= are both given; name one assistant")
    if assistant is not None and not isinstance(assistant, DFlashDrafter):
        raise OptionsError(f"assistant= takes a DFlashDrafter, got {type(assistant).__name__}")
    named = assistant if assistant is not None else assistant_model
    return named if isinstance(named, DFlashDrafter) else None


def _plain(model: PreTrainedModel, attached: _Attached | None) -> Any:
    """``generate`` as this object had it before it was attached."""
    covered = None if attached is None else attached.before.get("generate")
    return covered or types.MethodType(type(model).generate, model)


def _check_once(model: PreTrainedModel, attached: _Attached | None, drafter: DFlashDrafter) -> TargetView:
    """Refuse a pair that does not fit, every time; warn of a doubtful one the first time it is used."""
    view = pair_view(model, drafter)
    if attached is not None and attached.drafter is not drafter and drafter not in attached.seen:
        attached.seen.add(drafter)
        warn_of_doubts(view, drafter)
    return view


def _say_once(model: PreTrainedModel, attached: _Attached, reason: str) -> None:
    """A call that only has a default drafter runs undrafted: one warning per reason, and the trace says so."""
    remember(Trace(target=public_name(model_name(model)), loop="plain", fallback=reason))
    if reason not in attached.warned:
        attached.warned.add(reason)
        warn(f"running without the attached drafter: {reason}")


def _get_candidate_generator(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
    """The host asks for a candidate generator: ours for a DFlash drafter, its own for all else."""
    drafter = kwargs.get("assistant_model")
    if not isinstance(drafter, DFlashDrafter):
        return type(self)._get_candidate_generator(self, *args, **kwargs)
    config: GenerationConfig = kwargs["generation_config"]
    return DFlashCandidateGenerator(
        drafter,
        pair_view(self, drafter),
        max_length=config.max_length,
        max_draft_tokens=explicit_draft_cap(config),
    )
