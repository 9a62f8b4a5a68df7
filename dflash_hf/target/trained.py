"""Is a text longer than its drafter was trained for? A drafter that reads further back than that finds fewer tokens.

In: both configs and how far back the drafter sees. Out: the position from which a warning is due, and the warning, once
for each pair. The text is the target's own in any case.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import warn
from dflash_hf.target.view import TargetView, model_name, public_name

__all__ = ["drafts_well_up_to", "trained_positions", "warn_past_trained"]

_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
_USUAL_WINDOW = 4096  # z-lab's drafters were trained on texts of up to 3072 or 4096 tokens (arXiv 2602.06036, A.1)

_warned: weakref.WeakKeyDictionary[PreTrainedModel, weakref.WeakSet[DFlashDrafter]] = weakref.WeakKeyDictionary()


def trained_positions(config: Any) -> int | None:
    """Positions a config is for, its rotary scaling included; None where it names no end.

    Scaled rotary settings (YaRN, llama3) reach ``factor`` times their original length, and some files write that into
    ``max_position_embeddings`` as well: the larger counts. "dynamic" frequencies follow the text and have no end.

    >>> from types import SimpleNamespace as Config
    >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    >>> trained_positions(Config(max_position_embeddings=40960, rope_parameters=yarn))
    131072
    """
    ends = [said for name in _NAMES if isinstance(said := getattr(config, name, None), int) and said > 0]
    for rope in _ropes(config):
        if rope.get("rope_type", rope.get("type")) == "dynamic":
            return None
        original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
        if original and factor:
            ends.append(int(original * factor))
    return max(ends, default=None)


def drafts_well_up_to(view: TargetView, drafter: DFlashDrafter, window: int | None) -> float:
    """The first position at which a warning is due, or infinity.

    None is due where the drafter never sees further back than it was trained to (rotary positions only tell distances),
    nor where the target's own positions end there or before: then it is the target that is out of its depth.

    Args:
        view: the target.
        drafter: of which pair.
        window: positions the drafter sees, its own included, or None for all (``GrowingContext.window``).
    """
    trained, own = trained_positions(drafter.config), trained_positions(view.text_config)
    if trained is None or (own is not None and own <= trained) or (window is not None and window <= trained):
        return math.inf
    return trained


def warn_past_trained(view: TargetView, drafter: DFlashDrafter, position: int) -> None:
    """Say, the first time for this pair, that the text has reached ``position``."""
    seen = _warned.setdefault(view.model, weakref.WeakSet())
    if drafter in seen:
        return
    seen.add(drafter)
    trained = trained_positions(drafter.config)
    assert trained is not None, "only a drafter whose positions end is warned of"
    name = model_name(drafter)
    said = "the drafter" if name == type(drafter).__name__ else f"drafter {public_name(name)}"
    warn(
        f"{said} with {view.public_name}: the text has reached position {position}, and the drafter's config is for "
        f"{trained} positions; the text stays right, but expect fewer accepted tokens from here on. "
        f"DFlashOptions(draft_window={min(trained, _USUAL_WINDOW)}) (--draft-window) shows it the newest tokens only."
    )


def _ropes(config: Any) -> list[Mapping[str, Any]]:
    """Rotary settings, in the spelling of transformers 5 or 4: one for all layers, or one for each kind of layer."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(settings, Mapping):
        return []
    nested = [value for value in settings.values() if isinstance(value, Mapping)]
    return nested or [settings]
