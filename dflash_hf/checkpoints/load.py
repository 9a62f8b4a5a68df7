"""``load_drafter``: an id or a folder of any readable dialect -> a ``DFlashDrafter`` with its provenance.

hub.locate -> files.survey -> dialects.detect -> reader -> assemble
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from dflash_hf.checkpoints.assemble import assemble, stored_dtype
from dflash_hf.checkpoints.card import read_base_model
from dflash_hf.checkpoints.dequantise import plain_files
from dflash_hf.checkpoints.files import CheckpointFiles, survey
from dflash_hf.checkpoints.hub import Source, locate
from dflash_hf.checkpoints.nested_keys import BLOCKS, NESTED_KEYS
from dflash_hf.checkpoints.origins import origins_of
from dflash_hf.checkpoints.placement import resolve_device, resolve_dtype
from dflash_hf.checkpoints.provenance import Provenance
from dflash_hf.checkpoints.reading import Reading
from dflash_hf.checkpoints.translate import translate
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import CheckpointError, OptionsError, warn
from dflash_hf.target.pairing import check_pair

__all__ = ["load_drafter", "read_checkpoint"]

_KNOWN = "revision, token, cache_dir, subfolder, local_files_only, dtype, device_map, attn_implementation, target"
_ADVICE = {
    "torch_dtype": "say dtype=",
    "trust_remote_code": "code from a repository is never run; drop it",
    "use_safetensors": "nothing but safetensors is ever read; drop it",
    "quantization_config": "drafters are loaded as stored; quantise the target instead",
}


def load_drafter(
    id_or_folder: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    subfolder: str = "",
    local_files_only: bool = False,
    dtype: torch.dtype | str | None = "auto",
    device_map: Any = None,
    attn_implementation: str | None = None,
    target: PreTrainedModel | None = None,
    **unknown: Any,
) -> DFlashDrafter:
    """Load a drafter of any dialect this version reads (``docs/formats.md``). No remote code, no pickle.

    Args:
        id_or_folder: Hub id, or a folder that holds config.json and safetensors.
        revision: branch, tag or commit on the Hub; resolved to a commit, kept in ``drafter.provenance``.
        token: Hub token, or True for the stored one.
        cache_dir: where the Hub's files are kept.
        subfolder: folder inside the repository or folder that holds the drafter.
        local_files_only: read the cache, ask nobody.
        dtype: ``"auto"`` (or None) keeps the stored dtype; else a floating-point dtype or its name.
        device_map: a device, ``{"": device}``, or ``"auto"`` (accelerate). A drafter lives on one device.
        attn_implementation: as in transformers; None lets it choose.
        target: runs ``check_pair(target, drafter)`` after loading, and nothing else.

    Returns:
        The drafter, in evaluation mode, with ``drafter.provenance``.

    Raises:
        HubError: the Hub did not deliver.
        UnsupportedCheckpointError: a dialect this version does not read, by name.
        CheckpointError: files that are incomplete or contradict themselves.
        IncompatiblePairError: ``target`` was given and does not fit.
        OptionsError: an argument with an impossible value, or an unknown one.
    """
    if unknown:
        raise OptionsError(
            "; ".join(f"{name}: {_ADVICE.get(name, 'unknown argument')}" for name in sorted(unknown))
            + f". Known: {_KNOWN}."
        )
    source = locate(
        os.fspath(id_or_folder),
        revision=revision,
        token=token,
        cache_dir=None if cache_dir is None else os.fspath(cache_dir),
        subfolder=subfolder,
        local_files_only=local_files_only,
    )
    files, found, reading = read_checkpoint(source)
    stored = stored_dtype(files.tensors)
    load_dtype = resolve_dtype(dtype, stored)
    device = resolve_device(device_map, reading.config, load_dtype)
    drafter = _assembled(files, reading, load_dtype, device, attn_implementation)
    drafter.provenance = _provenance(source, subfolder, found, reading, files, stored)
    drafter.config._name_or_path = drafter.name_or_path = source.name
    if target is not None:
        check_pair(target, drafter)
    return drafter


@dataclass(frozen=True, slots=True)
class Detected:
    """The dialect of a checkpoint, what says so, and where each value of its config is from."""

    dialect: str
    evidence: tuple[str, ...]
    origins: Mapping[str, str]


def read_checkpoint(source: Source) -> tuple[CheckpointFiles, Detected, Reading]:
    """Survey, detect and translate; no weight is read."""
    files = survey(source.folder)
    try:
        files = plain_files(files)
        found = translate(files.config, files.tensors)
    except CheckpointError as error:
        raise type(error)(f"{source.name}: {error}") from error
    reading = found.reading
    origins = origins_of(reading, found.asked, found.dialect)
    if (named := read_base_model(source.folder)) is not None:
        reading.config.target_name, origins["target_name"] = named, "README.md: base_model"
    return files, Detected(found.dialect, found.evidence, origins), reading


def _assembled(
    files: CheckpointFiles, reading: Reading, dtype: torch.dtype, device: torch.device, attention: str | None
) -> DFlashDrafter:
    if attention is not None:
        reading.config._attn_implementation = attention
    reading.config.dtype = dtype
    try:
        return assemble(files, reading, dtype=dtype, device=device)
    except (ValueError, ImportError) as error:
        if attention is None or isinstance(error, OptionsError):
            raise
        raise OptionsError(f"attn_implementation={attention!r} cannot be used here: {error}") from error


def _provenance(
    source: Source, subfolder: str, found: Detected, reading: Reading, files: CheckpointFiles, stored: torch.dtype
) -> Provenance:
    notes = [*reading.notes, *files.notes]
    kinds = {info.dtype for name, info in files.tensors.items() if name in reading.names}
    if len(kinds) > 1:
        notes.append(f"weights are stored in {', '.join(sorted(kinds))}; all are loaded in one dtype")
    if odd := _unknown_keys(files.config):
        notes.append(f"nested keys not known to this version and not used: {', '.join(odd)}")
        warn(
            f"{source.name}: config.json has {', '.join(odd)}, which this version of dflash_hf does not know; if the "
            "drafter needs them it will draft poorly (the text stays the target's)"
        )
    return Provenance(
        source=f"{source.name}/{subfolder}" if subfolder else source.name,
        revision=source.revision,
        dialect=found.dialect,
        defaults=reading.defaults,
        notes=tuple(notes),
        stored_dtype=str(stored).removeprefix("torch."),
        files=files.names,
        evidence=found.evidence,
        origins=found.origins,
        names={canonical: name for name, canonical in reading.names.items()}
        | {canonical: made.source for canonical, made in reading.made.items()},
        config=files.config,
        tensors=files.tensors,
    )


def _unknown_keys(config: Any) -> list[str]:
    blocks = ((name, config.get(name) or {}) for name in BLOCKS)
    given = ((f"{name}.{key}", key, value) for name, block in blocks for key, value in block.items())
    return sorted(path for path, key, value in given if key not in NESTED_KEYS and value not in (None, False))
