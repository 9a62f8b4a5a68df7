"""Which architectures there are: every causal LM and every image-text model that the installed transformers loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_hf.errors import OptionsError

__all__ = ["Architecture", "architectures", "chosen"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One entry of transformers' auto mappings."""

    model_type: str
    model_class: str

    @property
    def key(self) -> str:
        """What a person names it by, and what the table is sorted by: ``llama4/Llama4ForCausalLM``."""
        return f"{self.model_type}/{self.model_class}"


def architectures() -> list[Architecture]:
    """All of them, by name. One model type may load two classes: with its image tower, and without."""
    from transformers.models.auto import modeling_auto

    found = set()
    for mapping in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    ):
        for model_type, classes in mapping.items():
            names = (classes,) if isinstance(classes, str) else classes
            found |= {Architecture(model_type, name) for name in names}
    return sorted(found, key=lambda each: each.key)


def chosen(names: Sequence[str]) -> list[Architecture]:
    """Those of these model types or ``type/class`` keys, all for none.

    Raises:
        OptionsError: a name that this transformers has not.
    """
    known = architectures()
    if not names:
        return known
    if unknown := sorted(set(names) - {each.key for each in known} - {each.model_type for each in known}):
        raise OptionsError(
            f"this transformers has no causal LM or image-text model of type {', '.join(unknown)}; "
            "they are named as in a config.json's model_type"
        )
    return [each for each in known if each.key in names or each.model_type in names]
