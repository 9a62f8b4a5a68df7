"""``convert``: a drafter of any readable dialect -> one of the layouts we write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from dflash_hf.checkpoints.layouts import layout
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.checkpoints.save import write_drafter
from dflash_hf.checkpoints.settle import check_module_embeds, settled
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import OptionsError
from dflash_hf.target.pairing import check_pair

__all__ = ["convert"]


def convert(
    source: str | os.PathLike[str] | DFlashDrafter,
    destination: str | os.PathLike[str],
    to: str = "zlab",
    *,
    target: PreTrainedModel | None = None,
    **loading: Any,
) -> DFlashDrafter:
    """Load ``source`` and write it into ``destination``.

    Args:
        source: Hub id, folder, or a drafter in memory.
        destination: folder to write.
        to: ``"zlab"``, which vLLM, SGLang, z-lab's code and we read; ``"host"``, the Muse Glimmer assistant that
            transformers' own ``generate(assistant_model=..., speculation_type="dflash")`` runs; or ``"speculators"``,
            vLLM's own library's.
        target: checked to fit. With ``to="speculators"`` a drafter that borrows the target's embedding gets its rows;
            with ``to="host"`` it is checked that transformers' lane embeds a block as the drafter means it.
        loading: passed to :func:`~dflash_hf.checkpoints.load.load_drafter` (``revision``, ``dtype``, ...).

    Returns:
        The drafter that was written.

    Raises:
        CheckpointError: the layout cannot express the drafter, or its engine would embed otherwise; the message lists
            what.
        IncompatiblePairError: ``target`` was given and does not fit.
        OptionsError: an unknown layout, or ``destination`` is ``source``.
    """
    layout(to)
    if isinstance(source, DFlashDrafter):
        if loading:
            raise OptionsError(f"{', '.join(sorted(loading))}: for loading, but the drafter is already in memory")
        drafter = source
    else:
        if Path(source).is_dir() and Path(source).resolve() == Path(destination).resolve():
            raise OptionsError(f"destination is the source ({source}); name another folder")
        drafter = load_drafter(source, **loading)
    if target is not None:
        check_pair(target, drafter)
        if to == "speculators":
            drafter = settled(drafter, target)
        elif to == "host":
            check_module_embeds(drafter, target)
    write_drafter(drafter, Path(destination), to=to)
    return drafter
