"""What this version does not draft, by name, decided before any work.

With an explicit ``assistant=`` a reason becomes an ``UnsupportedCallError``; with only an attached default the call
runs as plain ``generate``, with one warning per reason and the reason in the trace. Nothing is ever drafted wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from dflash_hf.errors import UnsupportedCallError
from dflash_hf.generation.rows import unknown_arguments
from dflash_hf.target.cache_rows import cannot_split
from dflash_hf.target.host import chunks_go_on, decoding_mode
from dflash_hf.target.positions import frequencies_change
from dflash_hf.target.state import cached_length, cannot_crop
from dflash_hf.target.view import TargetView

__all__ = ["STREAMED_ROWS", "RowsRefusedError", "refusal", "refusal_in_the_hosts_loop", "refusal_of_rows"]

_CROPPED = (None, "dynamic", "offloaded", "static")
_RIVALS = {
    "prompt_lookup_num_tokens": "prompt lookup and a drafter cannot both propose tokens; unset one of them",
    "use_mtp": "the target's own multi-token prediction and a drafter cannot both propose tokens; unset one of them",
    "assistant_early_exit": "early exit and a drafter cannot both propose tokens; unset one of them",
    "assistant_ensemble_weight": "it asks for another distribution than the target's; drafting keeps the target's",
    "token_healing": "it rewrites the prompt inside generate; heal the prompt first",
}


STREAMED_ROWS = "a streamer with several rows, which are decoded one after another; give one row a call"


class RowsRefusedError(UnsupportedCallError):
    """Several rows with something that cannot be told apart by row: known only once the host has prepared the call."""


def refusal(
    config: GenerationConfig,
    *,
    cache: Any = None,
    keeps_cache: bool = True,
    synced: bool = False,
    static: str | None = None,
    virtual: bool = False,
) -> str | None:
    """Why this call cannot be drafted, or None.

    Args:
        config: the generation config the call would run with.
        cache: a cache the user passed, or the one the host prepared.
        keeps_cache: whether the model has a cache at all.
        synced: whether the host would keep several devices in step.
        static: why a static cache of this model cannot be used, or None.
        virtual: whether an adapter puts tokens before the prompt that stand in no ids.
    """
    for option, why in _RIVALS.items():
        if getattr(config, option, None):
            return f"{option} is set: {why}"
    mode = decoding_mode(config)
    if (config.num_beams or 1) > 1 or mode not in ("greedy_search", "sample"):
        return f"decoding mode {mode} (num_beams={config.num_beams}); only greedy decoding and sampling are drafted"
    if config.use_cache is False:
        return "use_cache=False; drafting needs the target's cache"
    if virtual:
        return "prompt or prefix tuning, whose tokens stand in no ids; a drafter would count positions without them"
    if not keeps_cache:
        return "the model keeps no cache that generate can prepare; drafting needs one"
    if config.cache_implementation == "static" and static is not None:
        return static
    if config.cache_implementation not in _CROPPED:
        return (
            f"cache_implementation={config.cache_implementation!r}, which cannot drop tokens; "
            f"drafting works with {', '.join(map(repr, _CROPPED[1:]))}"
        )
    if cache is not None and (reason := cannot_crop(cache)):
        return reason
    if config.prefill_chunk_size is not None and not chunks_go_on() and cache is not None and cached_length(cache):
        return (
            "prefill_chunk_size over a filled cache: this release of transformers reads the whole prompt into it again "
            "(5.24 goes on from what it holds)"
        )
    if synced:
        return (
            "devices kept in step (synced_gpus, ZeRO-3 or FSDP); a drafted call takes its own number of steps on each"
        )
    return None


def refusal_of_rows(
    view: TargetView, config: GenerationConfig, rows: int, cache: Any, kwargs: Mapping[str, Any], streamer: Any = None
) -> str | None:
    """Why ``rows`` rows with this cache and these arguments cannot be decoded one after another, or None."""
    if streamer is not None:
        return STREAMED_ROWS
    if reason := cannot_split(cache, rows):
        return f"several rows and {reason}; give one row a call"
    if unknown := unknown_arguments(kwargs):
        return f"several rows and {', '.join(unknown)}, whose rows cannot be told apart; give one row a call"
    held, embeds = cached_length(cache) or 0, kwargs.get("inputs_embeds")
    longest = (config.max_length or 0) + held + (0 if embeds is None else embeds.shape[1])
    if frequencies_change(view.text_config, longest):
        return (
            "several rows of this length: the target's rotary frequencies change on the way, with the longest row; "
            "give one row a call"
        )
    return None


def refusal_in_the_hosts_loop(config: GenerationConfig, call: Mapping[str, Any], *, cache: Any = None) -> str | None:
    """Why transformers' own assisted loop would give other text than plain decoding for this call, or None.

    Its criteria see only the end of a block, its processors see rejected tokens too, and it feeds a filled cache its
    tokens again (reproduced on 5.24).
    """
    for name in ("stopping_criteria", "logits_processor", "prefix_allowed_tokens_fn"):
        if call.get(name):
            return f"{name} would see more or fewer tokens than they are shown in plain decoding"
    for option in ("stop_strings", "max_time", "guidance_scale"):
        if getattr(config, option, None) not in (None, 1, 1.0):
            return f"{option} is only looked at after a whole block there, or sees rejected tokens"
    if cache is not None and cached_length(cache):
        return "a cache that holds tokens already; that loop would feed them again"
    return None
