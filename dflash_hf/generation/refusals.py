"""What this version does not draft, by name, decided before any work.

With an explicit ``assistant=`` a reason becomes an ``UnsupportedCallError``; with only an attached default the call
runs as plain ``generate``, with one warning per reason and the reason in the trace. Nothing is ever drafted wrongly.
"""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig

from dflash_hf.target.host import decoding_mode
from dflash_hf.target.state import cannot_crop

__all__ = ["refusal"]

_DYNAMIC = (None, "dynamic", "dynamic_full")
_RIVALS = {
    "prompt_lookup_num_tokens": "prompt lookup",
    "use_mtp": "the target's own multi-token prediction",
    "assistant_early_exit": "early exit",
}


def refusal(config: GenerationConfig, *, rows: int, cache: Any = None, synced: bool = False) -> str | None:
    """Why this call cannot be drafted, or None.

    Args:
        config: the generation config the call would run with.
        rows: batch rows of the input.
        cache: a cache the user passed, if any.
        synced: whether ``synced_gpus`` is asked for.
    """
    if rows * (config.num_return_sequences or 1) > 1:
        return (
            f"{rows} rows with num_return_sequences={config.num_return_sequences or 1}; "
            "this version drafts for one row at a time"
        )
    for option, name in _RIVALS.items():
        if getattr(config, option, None):
            return f"{option} is set: {name} and a drafter cannot both propose tokens; unset one of them"
    mode = decoding_mode(config)
    if (config.num_beams or 1) > 1 or mode not in ("greedy_search", "sample"):
        return f"decoding mode {mode} (num_beams={config.num_beams}); only greedy decoding and sampling are drafted"
    if config.use_cache is False:
        return "use_cache=False; drafting needs the target's cache"
    if config.cache_implementation not in _DYNAMIC:
        return f"cache_implementation={config.cache_implementation!r}; this version drafts with the dynamic cache"
    for output in ("output_hidden_states", "output_attentions"):
        if getattr(config, output, None):
            return f"{output}=True; this version returns scores and logits of drafted calls, not these"
    if cache is not None and (reason := cannot_crop(cache)):
        return reason
    if synced:
        return "synced_gpus=True; a drafted call takes its own number of steps on each device"
    return None
