"""One architecture: built small, decoded plain and drafted, and what came of it (``rows``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from dflash_hf.bench.judge import first_difference
from dflash_hf.bench.targets.names import Architecture
from dflash_hf.bench.targets.rows import DIFFERS, EXACT, FAILED, NOT_BUILT, REFUSED, Row
from dflash_hf.bench.targets.scripted import PATTERNS, scripted_drafter
from dflash_hf.bench.targets.tiny import build, prompt, spread_weights, spreads_of
from dflash_hf.errors import DFlashError
from dflash_hf.generation.attach import generate
from dflash_hf.generation.record import last_trace
from dflash_hf.trace import Trace

__all__ = ["NEW", "examine"]

NEW = 28  # tokens: past windows of 8 and several blocks of 8
_VARIED = 6  # different tokens among them, or drafts are right by chance
_CLOSE = 1e-3  # of scores, absolute and relative: float32 sums in another order
_LONGEST = 400  # characters of a reason


def examine(architecture: Architecture, on_drafting: Callable[[], None] = lambda: None) -> Row:
    """Build it, decode it, judge it; never raises but for an interruption.

    Args:
        architecture: which.
        on_drafting: called when plain decoding is done: from here on, what goes wrong is ours.
    """
    names = {"model_type": architecture.model_type, "model_class": architecture.model_class}
    try:
        model = build(architecture)
    except Exception as error:
        return Row(**names, outcome=NOT_BUILT, why=_said(error))
    try:
        plain = _varied_text(model)
    except Exception as error:
        if (refused := _refusal(model)) is not None:
            return Row(**names, outcome=refused[0], why=refused[1])
        return Row(**names, outcome=NOT_BUILT, why=f"plain decoding: {_said(error)}")
    on_drafting()
    cache = _cache_kind(getattr(plain, "cache", None) or getattr(plain, "past_key_values", None))
    if (refused := _refusal(model)) is not None:
        return Row(**names, outcome=refused[0], why=refused[1], cache=cache)
    outcome, why = _judge(model, plain)
    return Row(**names, outcome=outcome, why=why, cache=cache, state=_trace().state)


def _call() -> dict[str, Any]:
    return {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}


def _varied_text(model: PreTrainedModel) -> Any:
    """What plain ``generate`` gives, with the first spread of weights under which its text varies."""
    for spread in spreads_of(model):
        spread_weights(model, spread)
        plain = type(model).generate(model, prompt(), **_call())
        new = plain.sequences[0, prompt().shape[1] :]
        if len(new) == NEW and len(set(new.tolist())) >= _VARIED and not bool(torch.stack(plain.scores).isnan().any()):
            return plain
    raise RuntimeError("the small model repeats itself, ends early or gives no numbers, whatever its weights")


def _refusal(model: PreTrainedModel) -> tuple[str, str] | None:
    """Outcome and reason where the product will not draft for this target; None where it does.

    A refusal once the prompt is being read, whose tokens a trial of one does not have, is a fault.
    """
    read: list[int] = []

    def note(_module: Any, args: Any, call: Any) -> None:
        read.append(_tokens(args, call))

    noting = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        _drafted(model, [], PATTERNS["all accepted"], max_new_tokens=1)
    except DFlashError as error:
        if any(tokens > 1 for tokens in read):
            return FAILED, f"refused when the prompt had been read: {_said(error)}"
        return REFUSED, _said(error)
    except Exception:
        return None  # no refusal: `_judge` meets it again, and says so
    finally:
        noting.remove()
    return None


def _tokens(args: tuple[Any, ...], call: dict[str, Any]) -> int:
    """How many a forward reads: of whatever its ids or embeddings are called."""
    given = [each for each in (*args, *call.values()) if isinstance(each, torch.Tensor) and each.dim() > 1]
    return max((each.shape[1] for each in given), default=0)


def _judge(model: PreTrainedModel, plain: Any) -> tuple[str, str]:
    """Outcome and reason, over every drafter."""
    for name, spoil in PATTERNS.items():
        try:
            drafted = _drafted(model, plain.sequences[0].tolist(), spoil)
        except Exception as error:
            return FAILED, f"{name}: {_said(error)}"
        if (difference := _difference(drafted, plain)) is not None:
            return DIFFERS, f"{name}: {difference}"
        accepted = sum(record.accepted for record in _trace().rounds)
        if name == "all accepted" and accepted < NEW // 2:
            return FAILED, f"only {accepted} of {NEW} tokens were drafted, so that nothing is shown"
    return EXACT, ""


def _drafted(model: PreTrainedModel, script: list[int], spoil: Callable[[int], bool], **options: Any) -> Any:
    drafter = scripted_drafter(model, script, spoil)
    return generate(model, prompt(), assistant=drafter, **(_call() | options))


def _trace() -> Trace:
    trace = last_trace()
    assert trace is not None, "a drafted call leaves a trace"
    return trace


def _difference(drafted: Any, plain: Any) -> str | None:
    """Where the two texts part, or their scores by more than rounding."""
    start = prompt().shape[1]
    mine, theirs = drafted.sequences[0, start:].tolist(), plain.sequences[0, start:].tolist()
    place = first_difference(theirs, mine)
    if place is not None:
        return f"token {place} of {len(theirs)}"
    for place, (own, expected) in enumerate(zip(drafted.scores, plain.scores, strict=True)):
        if not torch.isclose(own, expected, rtol=_CLOSE, atol=_CLOSE).all():
            return f"scores of token {place}, by up to {float((own - expected).abs().max()):.2g}"
    return None


def _cache_kind(cache: Any) -> str:
    """The cache's class, and the kinds of its layers: ``DynamicCache (full, sliding)``."""
    if cache is None:
        return ""
    kinds = dict.fromkeys(type(layer).__name__.removesuffix("Layer") for layer in getattr(cache, "layers", []))
    return type(cache).__name__ + (f" ({', '.join(kinds)})" if kinds else "")


def _said(error: Exception) -> str:
    """The first line of what an error says, with its class where it is none of ours."""
    text = " ".join(str(error).split())
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    return text if isinstance(error, DFlashError) else f"{type(error).__name__}: {text}"
