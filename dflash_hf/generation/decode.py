"""``generate``: the callable behind ``custom_generate=``, which runs one drafted call from prepared inputs.

Works on any model without attaching: ``model.generate(**inputs, custom_generate=dflash_hf.generate,
assistant=drafter)``. The host then drops ``streamer``, ``tokenizer`` and ``stop_strings``; ``attach`` keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import UnsupportedCallError
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.generation.clock import RoundClock
from dflash_hf.generation.record import new_trace, remember
from dflash_hf.generation.refusals import refusal
from dflash_hf.generation.sequential import Call, SequentialLoop
from dflash_hf.options import DFlashOptions
from dflash_hf.target.host import cache_key, cache_of, explicit_draft_cap
from dflash_hf.target.pairing import pair_view
from dflash_hf.target.state import CropState
from dflash_hf.target.taps import TapRecorder
from dflash_hf.target.view import TargetView

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
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decode with a drafter from what the host's ``generate`` has prepared.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs: as the host passes them.
        assistant: the drafter.
        dflash: options, else the generation config's ``dflash`` entry. ``num_assistant_tokens`` is a cap unless it is
            the host's default of 20, which cannot be told from "not set" here.
        dflash_streamer: a streamer; the host keeps ``streamer`` for itself on this path.

    Returns:
        Token ids [1, S + n], or the host's output object when ``return_dict_in_generate`` is set.

    Raises:
        UnsupportedCallError: the call asks for something this version does not draft.
        IncompatiblePairError, UnsupportedTargetError: the drafter does not fit the model.
    """
    if not isinstance(assistant, DFlashDrafter):
        raise UnsupportedCallError(
            f"custom_generate=dflash_hf.generate needs assistant=<DFlashDrafter>, got {type(assistant).__name__}"
        )
    view, cache = pair_view(model, assistant), cache_of(model, model_kwargs)
    reason = refusal(generation_config, rows=input_ids.shape[0], cache=cache, keeps_cache=cache is not None)
    if reason is not None:
        raise UnsupportedCallError(f"{view.name} with a DFlash drafter: {reason}.")
    options = _options(dflash, generation_config)
    clock = RoundClock(model.device)
    engine = DFlashCandidateGenerator(assistant, view, max_draft_tokens=options.max_draft_tokens, clock=clock)
    taps, state = TapRecorder(view, assistant.config.target_layer_ids), CropState(cache)
    call = Call(
        model=model, engine=engine, taps=taps, state=state, processors=logits_processor, criteria=stopping_criteria,
        config=generation_config, options=options, streamer=dflash_streamer, clock=clock,
    )  # fmt: skip
    sequences, loop = _run(call, view, input_ids, model_kwargs)
    if not generation_config.return_dict_in_generate:
        return sequences
    return GenerateDecoderOnlyOutput(
        sequences=sequences, scores=loop.scores, logits=loop.logits, **{cache_key(model): cache}
    )


def _run(call: Call, view: TargetView, ids: Tensor, kwargs: dict[str, Any]) -> tuple[Tensor, SequentialLoop]:
    """The loop between the things that must be undone, whatever happens."""
    started, trace = time.perf_counter(), new_trace(view, call.engine.drafter)
    loop = SequentialLoop(call, trace)
    with call.taps:
        try:
            return loop.run(ids, kwargs), loop
        finally:
            call.state.end()
            call.clock.write_to(trace)
            trace.total_ms = 1e3 * (time.perf_counter() - started)
            remember(trace)


def _options(dflash: DFlashOptions | Mapping[str, Any] | None, config: GenerationConfig) -> DFlashOptions:
    options = DFlashOptions.of(dflash if dflash is not None else getattr(config, "dflash", None))
    caps = [cap for cap in (options.max_draft_tokens, explicit_draft_cap(config)) if cap is not None]
    return replace(options, max_draft_tokens=min(caps)) if caps else options
