"""``generate``: the callable behind ``custom_generate=``, which runs one drafted call from prepared inputs.

Works on any model without attaching: ``model.generate(**inputs, custom_generate=dflash_hf.generate,
assistant=drafter)``. The host then drops ``streamer``, ``tokenizer`` and ``stop_strings``; ``attach`` keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
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
from dflash_hf.generation.sequential import SequentialLoop
from dflash_hf.options import DFlashOptions
from dflash_hf.target.host import cache_key, cache_of
from dflash_hf.target.pairing import check_pair
from dflash_hf.target.state import CropState
from dflash_hf.target.taps import TapRecorder

__all__ = ["draft_cap", "generate"]

HOST_DEFAULT_ASSISTANT_TOKENS = 20


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
        dflash: options, else the generation config's ``dflash`` entry.
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
    options = DFlashOptions.of(dflash if dflash is not None else getattr(generation_config, "dflash", None))
    view = check_pair(model, assistant)
    cache = cache_of(model, model_kwargs)
    reason = refusal(generation_config, rows=input_ids.shape[0], cache=cache)
    if reason is None and cache is None:
        reason = "the model keeps no cache; drafting needs one"
    if reason is not None:
        raise UnsupportedCallError(f"{view.name} with a DFlash drafter: {reason}.")

    started, clock = time.perf_counter(), RoundClock(model.device)
    trace = new_trace(view, assistant)
    cap = draft_cap(options, generation_config)
    engine = DFlashCandidateGenerator(assistant, view, max_draft_tokens=cap, clock=clock)
    state = CropState(cache)
    with TapRecorder(view, assistant.config.target_layer_ids) as taps:
        loop = SequentialLoop(
            model, engine, taps, state, logits_processor, stopping_criteria, generation_config,
            options, trace, clock, dflash_streamer,
        )  # fmt: skip
        try:
            sequences = loop.run(input_ids, model_kwargs)
        finally:
            state.end()
            clock.write_to(trace)
            trace.total_ms = 1e3 * (time.perf_counter() - started)
            remember(trace)
    if not generation_config.return_dict_in_generate:
        return sequences
    return GenerateDecoderOnlyOutput(
        sequences=sequences, scores=loop.scores, logits=loop.logits, **{cache_key(model): cache}
    )


def draft_cap(options: DFlashOptions, config: GenerationConfig) -> int | None:
    """The tighter of ``max_draft_tokens`` and ``num_assistant_tokens``, whose host default means "not set"."""
    caps = [options.max_draft_tokens]
    if config.num_assistant_tokens != HOST_DEFAULT_ASSISTANT_TOKENS:
        caps.append(config.num_assistant_tokens)
    return min((cap for cap in caps if cap is not None), default=None)
