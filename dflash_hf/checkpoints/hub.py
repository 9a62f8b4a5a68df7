"""From a Hub id or a folder to local files, with the commit they were taken from.

Only config.json, README.md, safetensors and a mask's embedding are fetched, at one commit resolved first. What the Hub
refuses becomes one ``HubError`` sentence with the next step. A file enters the cache whole or not at all: that is
huggingface_hub's work (it downloads beside the cache and checks the size), so the client is used as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from dflash_hf.checkpoints.files import read_json
from dflash_hf.checkpoints.mask_embedding import MASK_FILE
from dflash_hf.errors import CheckpointError, HubError, OptionsError

__all__ = ["HUB_FAILURES", "Source", "explain", "locate"]

_WANTED = re.compile(
    r"^(config\.json|README\.md|[^/]+\.safetensors|[^/]+\.safetensors\.index\.json|mask_embedding\.pt)$"
)
_PATTERNS = ("config.json", "README.md", "*.safetensors", "*.safetensors.index.json", MASK_FILE)
# The client's transport error has moved between HTTP libraries; it is what its own HTTP error derives from.
_TRANSPORT: type[Exception] = HfHubHTTPError.__mro__[1]
HUB_FAILURES: tuple[type[Exception], ...] = (HfHubHTTPError, _TRANSPORT, EntryNotFoundError, OSError)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the files are now, and where they came from."""

    name: str  # as the caller gave it
    folder: Path  # holds config.json
    revision: str | None  # commit on the Hub


def locate(
    id_or_folder: str,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | None = None,
    subfolder: str = "",
    local_files_only: bool = False,
) -> Source:
    """Make the drafter's files local.

    Raises:
        HubError: the Hub could not deliver.
        CheckpointError: a path that is no folder, or no valid id.
        OptionsError: ``revision`` for a local folder, or a subfolder outside of it.
    """
    inside = PurePosixPath(subfolder)
    if inside.is_absolute() or ".." in inside.parts:
        raise OptionsError(f"subfolder={subfolder!r} leads out of {id_or_folder}; give a path below it")
    path = Path(id_or_folder).expanduser()
    if path.is_dir():
        if revision is not None:
            raise OptionsError(f"revision={revision!r} is for Hub ids, but {id_or_folder} is a local folder; drop it")
        return Source(id_or_folder, path / inside, None)
    if path.exists() or re.match(r"^([./~\\]|[A-Za-z]:)", id_or_folder) or id_or_folder.count("/") > 1:
        raise CheckpointError(f"{id_or_folder} is not a folder; pass the folder that holds config.json, or a Hub id")
    repo = _Repo(id_or_folder, revision, token, cache_dir, str(inside) if inside.parts else "")
    if local_files_only or constants.HF_HUB_OFFLINE:
        return repo.from_cache()
    return repo.from_hub()


@dataclass(frozen=True, slots=True)
class _Repo:
    """One repository at one revision, as asked for."""

    name: str
    revision: str | None
    token: str | bool | None
    cache_dir: str | None
    subfolder: str

    @property
    def _prefix(self) -> str:
        return f"{self.subfolder}/" if self.subfolder else ""

    def from_hub(self) -> Source:
        try:
            info = HfApi(token=self.token).model_info(self.name, revision=self.revision)
            present = [item.rfilename for item in info.siblings or []]
        except HFValidationError as error:
            raise CheckpointError(f"{self.name!r} is neither a folder nor a Hub id (owner/name): {error}") from error
        except HUB_FAILURES as error:
            raise HubError(explain(error, self.name, self.revision)) from error
        wanted = [name for name in present if self._is_wanted(name)]
        config = f"{self._prefix}config.json"
        if config not in wanted:
            raise HubError(self._no_config(info.sha, present))
        # The first file is asked for under the caller's own name of the revision: that is what the cache remembers
        # for loading without a network. The others come from the very commit this was.
        folder = Path(self._fetch(config, self.revision)).parent
        commit = folder.parents[len(PurePosixPath(self.subfolder).parts) - 1].name if self.subfolder else folder.name
        for name in wanted:
            if name != config:
                self._fetch(name, commit)
        return Source(self.name, folder, commit)

    def _fetch(self, file: str, revision: str | None) -> str:
        try:
            return hf_hub_download(
                self.name, file, revision=revision, token=self.token, cache_dir=self.cache_dir, library_name="dflash_hf"
            )
        except HUB_FAILURES as error:
            raise HubError(explain(error, self.name, self.revision, file=file)) from error

    def from_cache(self) -> Source:
        patterns = [f"{self._prefix}{pattern}" for pattern in _PATTERNS]
        try:
            snapshot = Path(
                snapshot_download(
                    self.name,
                    revision=self.revision,
                    cache_dir=self.cache_dir,
                    local_files_only=True,
                    allow_patterns=patterns,
                )
            )
        except HFValidationError as error:
            raise CheckpointError(f"{self.name!r} is neither a folder nor a Hub id (owner/name): {error}") from error
        except (LocalEntryNotFoundError, OSError) as error:
            raise HubError(
                f"{self._what} is not in the local cache, and the network is switched off (local_files_only or "
                "HF_HUB_OFFLINE); load it once with the network on."
            ) from error
        folder = snapshot / self.subfolder
        if lacking := _lacking(folder):
            raise HubError(
                f"the cached copy of {self._what} is incomplete ({lacking} missing), and the network is switched off; "
                "load it once with the network on."
            )
        return Source(self.name, folder, snapshot.name)

    def _is_wanted(self, name: str) -> bool:
        return name.startswith(self._prefix) and _WANTED.match(name.removeprefix(self._prefix)) is not None

    def _no_config(self, commit: str | None, present: list[str]) -> str:
        elsewhere = sorted({str(PurePosixPath(n).parent) for n in present if n.endswith("/config.json")})
        where = f"; there is one in subfolder={' or '.join(map(repr, elsewhere))}" if elsewhere else ""
        return f"{self._what} has no config.json at commit {commit}{where or '; is this the right repository?'}"

    @property
    def _what(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        return f"{self._label}{at}"

    @property
    def _label(self) -> str:
        return f"{self.name}/{self.subfolder}" if self.subfolder else self.name


def explain(error: Exception, name: str, revision: str | None, file: str | None = None) -> str:
    """One sentence on why the Hub did not deliver, with the next step."""
    said = " ".join(str(error).split())[:300]
    if isinstance(error, GatedRepoError):
        return (
            f"{name} is gated: ask for access on its page at {constants.ENDPOINT}/{name}, then log in with "
            "`hf auth login` or pass token=."
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{name} is no folder here and does not exist on {constants.ENDPOINT}, or is private: check the spelling, "
            "and log in with `hf auth login` or pass token= if it is private."
        )
    if isinstance(error, RevisionNotFoundError):
        return (
            f"{name} has no revision {revision!r}: leave revision out, or take a branch, tag or commit from its page."
        )
    if isinstance(error, OfflineModeIsEnabled):
        return f"{name} was not fetched, because HF_HUB_OFFLINE is set: unset it, or load a copy that is in the cache."
    if isinstance(error, LocalEntryNotFoundError):
        return _unreachable(name, file, said)
    if isinstance(error, EntryNotFoundError):
        return f"{name} lists {file} and does not deliver it: try again later, or take another revision."
    if isinstance(error, HfHubHTTPError):
        return f"the Hub answered for {name} with an error ({said}): try again later."
    if isinstance(error, OSError) and "size" in said.lower() and file is not None:
        return f"the download of {file} from {name} was cut short ({said}): load again; nothing half is kept as whole."
    if _is_local(error):
        return (
            f"{file or name} could not be kept: {said}; check the cache folder's space and rights, or pass cache_dir=."
        )
    return _unreachable(name, file, said)


def _is_local(error: Exception) -> bool:
    """Whether this machine's disk is the trouble, and not the network."""
    network = (ConnectionError, TimeoutError)
    return isinstance(error, OSError) and error.errno is not None and not isinstance(error, network)


def _unreachable(name: str, file: str | None, said: str) -> str:
    what = f"{file} of {name}" if file else name
    return (
        f"{what} could not be fetched: {constants.ENDPOINT} did not answer or broke off ({said}); check the network "
        "and load again (nothing half is kept as whole), or pass local_files_only=True to use a copy in the cache."
    )


def _lacking(folder: Path) -> str | None:
    """What a cached folder lacks to be a checkpoint, or None."""
    if not (folder / "config.json").is_file():
        return "config.json"
    for index in folder.glob("*.safetensors.index.json"):
        shards = set(read_json(index).get("weight_map", {}).values())
        if missing := sorted(name for name in shards if not (folder / name).is_file()):
            return ", ".join(missing)
    return None if any(folder.glob("*.safetensors")) else "*.safetensors"
