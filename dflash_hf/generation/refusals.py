"""What this version does not draft, by name, decided before any work.

With an explicit ``assistant=`` a reason becomes an ``UnsupportedCallError``; with only an attached default the call
runs as plain ``generate``, with one warning per reason and the reason in the trace. Nothing is ever drafted wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from dflash_hf.target.host import decoding_mode
from dflash_hf.target.state import cannot_crop

__all__ = ["refusal", "refusal_in_the_hosts_loop"]

_DYNAMIC = (None, "dynamic", "dynamic_full")
_RIVALS = {
    "prompt_lookup_num_tokens": "prompt lookup and a drafter cannot both propose tokens; unset one of them",
    "use_mtp": "the target's own multi-token prediction and a drafter cannot both propose tokens; unset one of them",
    "assistant_early_exit": "early exit and a drafter cannot both propose tokens; unset one of them",
    "assistant_ensemble_weight": "it asks for another distribution than the target's; drafting keeps the target's",
    "token_healing": "it rewrites the prompt inside generate; heal the prompt first",
}
_OUTPUTS = ("output_hidden_states", "output_attentions")


def refusal(
    config: GenerationConfig, *, rows: int, cache: Any = None, keeps_cache: bool = True, synced: bool = False
) -> str | None:
    """Why this call cannot be drafted, or None.

    Args:
        config: the generation config the call would run with.
        rows: batch rows of the input.
        cache: a cache the user passed, or the one the host prepared.
        keeps_cache: whether the model has a cache at all.
        synced: whether the host would keep several devices in step.
    """
    for option, why in _RIVALS.items():
        if getattr(config, option, None):
            return f"{option} is set: {why}"
    mode = decoding_mode(config)
    if (config.num_beams or 1) > 1 or mode not in ("greedy_search", "sample"):
        return f"decoding mode {mode} (num_beams={config.num_beams}); only greedy decoding and sampling are drafted"
    sequences = config.num_return_sequences or 1
    if rows * sequences > 1:
        several = f"num_return_sequences={sequences}" if rows == 1 else f"{rows} rows"
        return f"{several}; this version drafts for one row at a time"
    if config.use_cache is False:
        return "use_cache=False; drafting needs the target's cache"
    if not keeps_cache:
        return "the model keeps no cache that generate can prepare; drafting needs one"
    if config.cache_implementation not in _DYNAMIC:
        return f"cache_implementation={config.cache_implementation!r}; this version drafts with the dynamic cache"
    for output in _OUTPUTS:
        if getattr(config, output, None):
            return f"{output}=True; this version returns scores and logits of drafted calls, not these"
    if cache is not None and (reason := cannot_crop(cache)):
        return reason
    if synced:
        return (
            "devices kept in step (synced_gpus, ZeRO-3 or FSDP); a drafted call takes its own number of steps on each"
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
    if cache is not None and cache.get_seq_length() > 0:
        return "a cache that holds tokens already; that loop would feed them again"
    return None
