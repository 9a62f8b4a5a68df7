"""Lanes: ways to generate the same text, each a callable from inputs to ``generate``'s ids [1, S + N].

``plain`` is the class's own ``generate``, whatever is attached to the instance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from dflash_hf.target.devices import computing_device
from dflash_hf.trace import Trace

__all__ = ["Lane", "convert_for_host", "dflash_lane", "host_lane", "host_loop_lane", "lookup_lane", "plain_lane"]

Run = Callable[[dict[str, Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class Lane:
    """One way to generate.

    Args:
        run: inputs of one prompt (``input_ids`` [1, S] and so on) to the ids [1, S + N] that ``generate`` returns.
        trace: the trace of the last run, for a lane that drafts with DFlash.
    """

    run: Run
    trace: Callable[[], Trace | None] | None = None


def plain_lane(model: PreTrainedModel, **options: Any) -> Lane:
    """The model without any drafter."""
    stock = type(model).generate
    return Lane(lambda inputs: stock(model, **inputs, **options))


def dflash_lane(model: PreTrainedModel, drafter: Any, **options: Any) -> Lane:
    """The public path: ``generate(assistant=drafter)`` on an attached model."""
    from dflash_hf import last_trace

    return Lane(lambda inputs: model.generate(**inputs, assistant=drafter, **options), last_trace)


def host_lane(model: PreTrainedModel, assistant: PreTrainedModel, **options: Any) -> Lane:
    """transformers' own DFlash lane, with a drafter of a class it ships (``convert --to host`` writes its files)."""
    stock = type(model).generate
    return Lane(lambda inputs: stock(model, **inputs, assistant_model=assistant, speculation_type="dflash", **options))


def lookup_lane(model: PreTrainedModel, tokens: int = 10, **options: Any) -> Lane:
    """transformers' prompt lookup: drafts are copied from the text so far."""
    stock = type(model).generate
    return Lane(lambda inputs: stock(model, **inputs, prompt_lookup_num_tokens=tokens, **options))


def host_loop_lane(model: PreTrainedModel, drafter: Any, **options: Any) -> Lane:
    """transformers' own assisted loop with our drafting engine, on an attached model: any drafter runs in it."""
    return Lane(lambda inputs: model.generate(**inputs, assistant_model=drafter, speculation_type="dflash", **options))


def convert_for_host(drafter: Any, target: PreTrainedModel) -> PreTrainedModel:
    """The same drafter as transformers' own class, on the target's device and in its dtype.

    Raises:
        CheckpointError: transformers' class cannot express this drafter (it has no causal blocks, for one).
    """
    from tempfile import TemporaryDirectory

    from transformers import AutoModel

    from dflash_hf.checkpoints.convert import convert

    with TemporaryDirectory() as folder:
        convert(drafter, folder, to="host")
        assistant = AutoModel.from_pretrained(folder, dtype=target.dtype)
        return assistant.to(computing_device(target)).eval()
