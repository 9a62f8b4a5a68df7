"""A cache of folders that are whole or absent: built beside their place under a lock, then renamed into it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from dflash_hf.errors import DFlashError

__all__ = ["MANIFEST", "build_once", "cache_home", "is_whole"]

MANIFEST = "dflash_cache.json"  # file sizes of a finished folder, written last


def cache_home() -> Path:
    """``DFLASH_HOME``, else a folder ``dflash-hf`` under ``HF_HOME``, ``XDG_CACHE_HOME`` or ``~/.cache``."""
    if own := os.environ.get("DFLASH_HOME"):
        return Path(own).expanduser()
    shared = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "dflash-hf"


def build_once(place: Path, build: Callable[[Path], None]) -> Path:
    """``place``, built by ``build(folder)`` when it is not there yet.

    A second process waits for the first and uses its result. What a killed process left is swept away by the next.

    Raises:
        DFlashError: the folder's parent cannot be written.
    """
    from filelock import FileLock

    if is_whole(place):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_name(place.name + ".lock")):
            if not is_whole(place):
                _build(place, build)
    except OSError as error:
        raise DFlashError(f"cannot write {place}: {error}; set DFLASH_HOME to a folder with room for it") from error
    return place


def is_whole(place: Path) -> bool:
    """Whether ``place`` holds every file its manifest lists, in full length."""
    try:
        sizes = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["sizes"]
        return all((place / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


def _build(place: Path, build: Callable[[Path], None]) -> None:
    """Only ever called under the lock, so whatever lies here unfinished belongs to nobody."""
    for left in [*place.parent.glob(f".{place.name}.*.part"), place]:
        shutil.rmtree(left, ignore_errors=True)
    draft = place.with_name(f".{place.name}.{os.getpid()}.part")
    draft.mkdir()
    try:
        build(draft)
        sizes = {str(path.relative_to(draft)): path.stat().st_size for path in draft.rglob("*") if path.is_file()}
        (draft / MANIFEST).write_text(json.dumps({"sizes": sizes}, indent=1) + "\n", encoding="utf-8")
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
