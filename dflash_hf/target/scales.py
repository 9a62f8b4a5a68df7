"""The factors a target puts around its embedding and its head, outside of both modules.

In: a target's config. Out: numbers. A drafter of a dialect that borrows the target's embedding and head means them with
these factors (z-lab's loaders scale by what the target scales by, and inherit its logit multiplier and soft cap where
the drafter's files give none); the modules alone do not show them. Factors inside a module, such as Gemma's scaled
embedding, are not among them. Names as in transformers 5.18 to 5.24.
"""

from __future__ import annotations

from typing import Any

__all__ = ["embedding_scale", "logit_multiplier", "logit_softcap"]

_EMBEDDING = ("embedding_multiplier", "embedding_scale")  # Granite, HyperCLOVA X, Falcon-H1; HRM
_MULTIPLIERS = ("logit_scale", "output_multiplier", "lm_head_multiplier")  # Cohere, Muse, Falcon-H1
_DIVISORS = ("logits_scaling",)  # Granite, MiniCPM3; in HyperCLOVA X the same name multiplies
_MULTIPLIES = frozenset({"hyperclovax"})
_SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap")
# A model around a language model has a head of its own: most apply none of their text config's factors.
_WRAPPERS = frozenset(
    {
        "cohere_compass",
        "gemma3n",
        "gemma4",
        "gemma4_unified",
        "granite4_vision",
        "granite_docling",
        "inkling2",
        "inkling2_loop",
        "mistral_large4",
        "muse_glimmer",
        "muse_spark",
    }
)


def embedding_scale(config: Any) -> float:
    """What the target multiplies its embedding module's output by before the first layer."""
    text = config.get_text_config()
    if text.model_type == "ctrl" or getattr(text, "mup_enabled", False):  # the latter is AFMoE
        return float(text.hidden_size) ** 0.5
    return next((value for name in _EMBEDDING if (value := _number(text, name)) is not None), 1.0)


def logit_multiplier(config: Any) -> float:
    """What the target multiplies its head's output by."""
    text = _of_the_head(config)
    factor = 1.0
    for name in _MULTIPLIERS:
        factor *= _number(text, name) or 1.0
    for name in _DIVISORS:
        value = _number(text, name) or 1.0
        factor *= value if text.model_type in _MULTIPLIES else 1.0 / value
    return factor


def logit_softcap(config: Any) -> float | None:
    """The cap ``c`` of ``c * tanh(logits / c)``, applied after the multiplier, or None."""
    text = _of_the_head(config)
    return next((value for name in _SOFT_CAPS if (value := _number(text, name)) is not None), None)


def _of_the_head(config: Any) -> Any:
    """The config whose factors this model's head applies; a wrapper that applies none has only its own, empty one."""
    text = config.get_text_config()
    return text if text is config or config.model_type in _WRAPPERS else config


def _number(config: Any, name: str) -> float | None:
    value = getattr(config, name, None)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
