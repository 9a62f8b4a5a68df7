"""``generate``: the callable behind ``custom_generate=``, which runs one drafted call from prepared inputs.

Works on any model without attaching: ``model.generate(**inputs, custom_generate=dflash_hf.generate,
assistant=drafter)``. The host then drops ``streamer``, ``tokenizer`` and ``stop_strings``; ``attach`` keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from dflash_hf.drafter.context import GrowingContext
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import UnsupportedCallError, warn
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.generation.clock import RoundClock
from dflash_hf.generation.memory import ContextMemory, Turn
from dflash_hf.generation.outputs import DFlashOutput, join_rows
from dflash_hf.generation.per_row import processors_for_row, several_rows_refusal
from dflash_hf.generation.record import new_trace, remember
from dflash_hf.generation.refusals import RowsRefusedError, refusal, refusal_of_rows
from dflash_hf.generation.rows import level, row_of_arguments
from dflash_hf.generation.sequential import Call, SequentialLoop
from dflash_hf.options import DFlashOptions
from dflash_hf.target import host
from dflash_hf.target.adapters import prepends_virtual_tokens
from dflash_hf.target.cache_rows import split_cache
from dflash_hf.target.packing import PackedWeights
from dflash_hf.target.pairing import pair_view
from dflash_hf.target.positions import exact_until
from dflash_hf.target.replay import state_of
from dflash_hf.target.taps import RAW_LAST, TapRecorder, reads_raw_last
from dflash_hf.target.trial import try_out
from dflash_hf.target.view import TargetView
from dflash_hf.trace import Trace

__all__ = ["generate"]


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    assistant: DFlashDrafter | None = None,
    dflash: DFlashOptions | Mapping[str, Any] | None = None,
    dflash_streamer: Any = None,
    dflash_memory: ContextMemory | None = None,
    dflash_seen: bool = True,
    **model_kwargs: Any,
) -> Tensor | DFlashOutput:
    """Decode with a drafter from what the host's ``generate`` has prepared.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs: as the host passes them.
        assistant: the drafter.
        dflash: options, else the generation config's ``dflash`` entry. ``num_assistant_tokens`` is a cap unless it is
            the host's default of 20, which cannot be told from "not set" here.
        dflash_streamer: a streamer; the host keeps ``streamer`` for itself on this path.
        dflash_memory: contexts of earlier turns, and where those of this one go.
        dflash_seen: whether the cache outlives the call: it is the user's own, or returned.

    Returns:
        Token ids [B, S + n], or the host's output object with a ``trace`` when ``return_dict_in_generate`` is set.

    Raises:
        UnsupportedCallError: the call asks for something this version does not draft.
        IncompatiblePairError, UnsupportedTargetError: the drafter does not fit the model.
    """
    if not isinstance(assistant, DFlashDrafter):
        raise UnsupportedCallError(
            f"custom_generate=dflash_hf.generate needs assistant=<DFlashDrafter>, got {type(assistant).__name__}"
        )
    view, cache, rows = pair_view(model, assistant), host.cache_of(model, model_kwargs), input_ids.shape[0]
    if not rows:
        raise RuntimeError("there is no row to decode: input_ids has a batch of 0")
    stateful = several_rows_refusal(logits_processor, stopping_criteria)
    _refuse(view, assistant, generation_config, cache, rows, model_kwargs, stateful, dflash_streamer)
    _warn_of_ties(view, generation_config.max_length or 0)
    options = _options(dflash, generation_config)
    taps = TapRecorder(view, assistant.config.target_layer_ids, assistant.config.last_tap)
    one_row = partial(
        Call, model=model, forward=host.forward_of(model, generation_config, model_kwargs), taps=taps,
        criteria=stopping_criteria, config=generation_config, options=options, streamer=dflash_streamer,
        keep_context=dflash_seen and dflash_memory is not None,
    )  # fmt: skip
    engine_of = partial(
        DFlashCandidateGenerator, assistant, view, max_draft_tokens=options.max_draft_tokens,
        least_confidence=options.least_confidence,
    )  # fmt: skip
    caches = [cache] if rows == 1 else split_cache(cache, rows)
    turn = Turn(dflash_memory if dflash_seen else None, cache, assistant, rows, options.draft_window)
    loops = [
        _loop(one_row, engine_of, view, turn.contexts[row], own, processors_for_row(logits_processor, row, rows), row)
        for row, own in enumerate(caches)
    ]
    key = host.cache_key(model)
    compiled = loops[0].call.forward is not model  # its graph would be made anew, with neither hooks nor copies
    packed = PackedWeights([assistant] if compiled else [model, assistant], options.pack_weights)
    patches = [packed] if compiled else [packed, taps]
    with _undone(loops, turn, patches, cache, new_trace(view, assistant, loops[0].call.state.kind)) as trace:
        trace.packed_bytes = packed.bytes
        for row, loop in enumerate(loops):
            kwargs = model_kwargs if rows == 1 else {**row_of_arguments(model_kwargs, row), key: caches[row]}
            loop.run(input_ids[row : row + 1], kwargs)
        sequences = loops[0].ids
        if rows > 1:
            sequences = level(loops, host.padding(generation_config, stopping_criteria), seen=dflash_seen, cache=cache)
    if not generation_config.return_dict_in_generate:
        return sequences
    left = cache if rows > 1 else loops[0].call.state.cache
    return _answer(loops, sequences, {host.returned_cache_key(model): left}, trace)


def _refuse(
    view: TargetView,
    drafter: DFlashDrafter,
    config: GenerationConfig,
    cache: Any,
    rows: int,
    kwargs: Mapping[str, Any],
    stateful: str | None,
    streamer: Any,
) -> None:
    """Everything against this call; last, what only a trial of the target can show.

    Raises:
        RowsRefusedError: known only here, of a call that :mod:`dflash_hf.generation.prepare` had nothing against.
        UnsupportedCallError, UnsupportedTargetError: as ``generate`` says.
    """
    model, said = view.model, f"{view.public_name} with a DFlash drafter"
    synced, virtual = host.synchronises(model, None), prepends_virtual_tokens(model)
    if reason := refusal(config, cache=cache, keeps_cache=cache is not None, synced=synced, virtual=virtual):
        raise UnsupportedCallError(f"{said}: {reason}.")
    if reads_raw_last(drafter.config, view.num_layers) and host.compiles(model, config, cache):
        raise UnsupportedCallError(f"{said}: {RAW_LAST}.")
    if rows > 1 and (reason := stateful or refusal_of_rows(view, config, rows, cache, kwargs, streamer)):
        raise RowsRefusedError(f"{said}: {reason}.")
    try_out(view, drafter.config)


def _warn_of_ties(view: TargetView, longest: int) -> None:
    """Of a text that may leave plain's in float32 too."""
    limit = exact_until(view.text_config)
    if limit is not None and longest > limit:
        warn(
            f"{view.public_name} picks which {limit} tokens it attends to once there are more; equal scores fall "
            f"otherwise over a block, so past {limit} of this call's {longest} tokens the text is plain's only "
            "up to such ties (dflash-hf verify judges them)"
        )


def _loop(
    one_row: partial[Call],
    engine_of: partial[DFlashCandidateGenerator],
    view: TargetView,
    context: GrowingContext,
    cache: Any,
    processors: Any,
    row: int,
) -> SequentialLoop:
    """The loop of one row, with a cache, a context, a clock and a trace of its own."""
    clock, state = RoundClock(view.device), state_of(view, cache)
    engine = engine_of(clock=clock, context=context)
    call = one_row(engine=engine, state=state, processors=processors, clock=clock, row=row)
    return SequentialLoop(call, new_trace(view, engine.drafter, state.kind))


@contextmanager
def _undone(
    loops: Sequence[SequentialLoop], turn: Turn, patches: Sequence[Any], cache: Any, whole: Trace
) -> Iterator[Trace]:
    """The call between the things that must be undone, whatever happens; gives its trace, ``whole`` for many rows."""
    started = time.perf_counter()
    trace = loops[0].trace if len(loops) == 1 else whole
    trace.rows = [] if len(loops) == 1 else [loop.trace for loop in loops]
    finished = False
    try:
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            yield trace
        finished = True
    finally:
        for loop in loops:
            loop.note_memory()
            loop.call.state.end()
            loop.call.clock.write_to(loop.trace)
        turn.end(finished, cache if len(loops) > 1 else loops[0].call.state.cache)
        trace.total_ms = 1e3 * (time.perf_counter() - started)
        remember(trace)


def _answer(loops: Sequence[SequentialLoop], sequences: Tensor, cache: dict[str, Any], trace: Trace) -> DFlashOutput:
    """The host's output object: one entry a token, over all rows."""

    def over_rows(parts: list[Any]) -> Any:
        return parts[0] if len(parts) == 1 else join_rows(parts)

    output = DFlashOutput(
        sequences=sequences,
        scores=over_rows([loop.acceptance.scores for loop in loops]),
        logits=over_rows([loop.acceptance.logits for loop in loops]),
        attentions=over_rows([loop.returned.attentions for loop in loops]),
        hidden_states=over_rows([loop.returned.hidden_states for loop in loops]),
        **cache,
    )
    output.trace = trace
    return output


def _options(dflash: DFlashOptions | Mapping[str, Any] | None, config: GenerationConfig) -> DFlashOptions:
    options = DFlashOptions.of(dflash if dflash is not None else getattr(config, "dflash", None))
    caps = [cap for cap in (options.max_draft_tokens, host.explicit_draft_cap(config)) if cap is not None]
    return replace(options, max_draft_tokens=min(caps)) if caps else options
