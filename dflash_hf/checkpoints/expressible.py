"""What a drafter has beyond DFlash v1, in words, so that a layout can refuse what it cannot say before it writes.

In: a ``DFlashConfig``. Out: phrases that go into one ``CheckpointError``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError

__all__ = ["beyond_v1", "last_tap_problem", "one_window", "refuse", "scales_problem", "windows_problem"]

# What DFlash v1 does not have, the value that means "not there", and what to call it.
_NEUTRAL: Mapping[str, tuple[Any, str]] = {
    "first_slot": (1, "an anchor's slot that proposes"),
    "mask_embedding": (False, "an embedding of its own for the mask"),
    "draft_vocab_size": (None, "an LM head of its own"),
    "reduced_vocabulary": (False, "a head over some of the target's ids"),
    "head": ({"kind": "parallel"}, "a head that corrects or selects proposals"),
    "fusion": ("concat", "another fusion of taps than one projection"),
    "context_input_norm": (False, "context features that pass the layers' input norms"),
    "context_projections": (False, "projections of the context's own"),
    "layer_kind": ("qwen3", "layers of Gemma 4's shape"),
    "convolution": (None, "convolutions"),
    "attention_gate": (None, "gated attention"),
    "attention_sinks": (False, "attention sinks"),
    "value_scale": (1.0, "a factor on values"),
    "rope_interleaved": (False, "interleaved rotary pairs"),
    "context_rope_theta": (None, "a rotary base of the context's own"),
}


def beyond_v1(config: DFlashConfig, sayable: Collection[str] = ()) -> list[str]:
    """What this drafter has beyond DFlash v1.

    Args:
        config: the drafter's description.
        sayable: names of fields that the layout has keys for; ``"embedding"`` for an embedding of the drafter's own,
            ``"num_draft_tokens"`` for fewer proposals than slots.
    """
    found = [
        words for name, (neutral, words) in _NEUTRAL.items() if name not in sayable and getattr(config, name) != neutral
    ]
    if config.embedding == "own" and "embedding" not in sayable:
        found.append("an embedding of its own")
    if "partial_rotary_factor" in config.rope_parameters:
        found.append("rotary positions on a part of each head")
    if config.num_draft_tokens != config.block_size - config.first_slot and "num_draft_tokens" not in sayable:
        found.append(f"{config.num_draft_tokens} proposals from a block of {config.block_size}")
    return found


def windows_problem(config: DFlashConfig, rule: str) -> list[str]:
    """Windows of several lengths, or counted in another way than the layout's ``rule``."""
    found, lengths = [], sorted({window for window in config.layer_windows if window is not None})
    if len(lengths) > 1:
        found.append(f"windows of several lengths ({', '.join(map(str, lengths))})")
    if lengths and config.window_rule != rule:
        counted = {"query": "from each slot's own place", "anchor": "from the anchor", "context": "on the context only"}
        found.append(f"windows counted {counted[config.window_rule]}, where this layout means {counted[rule]}")
    return found


def last_tap_problem(config: DFlashConfig, meant: str) -> list[str]:
    """The last layer's tap, where it is tapped, is read before or after the final norm; layouts fix one of the two."""
    depth = config.num_target_layers
    if config.last_tap == meant or (depth is not None and max(config.target_layer_ids) < depth - 1):
        return []
    has, wants = (
        {"normed": "after the final norm", "raw": "before the final norm"}[each] for each in (config.last_tap, meant)
    )
    unknown = " (num_target_layers is not known, so it may be one of its taps)" if depth is None else ""
    return [f"a tap of the target's last layer from {has}, where this layout means {wants}{unknown}"]


def scales_problem(config: DFlashConfig) -> list[str]:
    """Factors on embeddings and logits, for layouts without keys for any."""
    found = []
    if config.embedding_scale != 1.0:
        found.append(f"embedding_scale={config.embedding_scale}")
    # A bare head's multiplier is 1; beside an inherited soft cap a stated 1 is more than nothing.
    if config.output_multiplier not in ((None,) if config.inherits_logit_scale else (None, 1.0)):
        found.append(f"output_multiplier={config.output_multiplier}")
    if config.final_logit_softcapping is not None:
        found.append(f"final_logit_softcapping={config.final_logit_softcapping}")
    return found


def one_window(config: DFlashConfig) -> int | None:
    """The window of the layers that have one."""
    return next((window for window in config.layer_windows if window is not None), None)


def refuse(where: str, problems: list[str], way_out: str = "") -> None:
    """One error for all ``problems``, or nothing."""
    if problems:
        raise CheckpointError(f"{where} cannot express this drafter: it has {'; '.join(problems)}{way_out}")
