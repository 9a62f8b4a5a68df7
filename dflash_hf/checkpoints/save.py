"""``save_drafter`` and ``push_drafter``: a drafter in memory -> z-lab's layout in a folder, or on the Hub."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RemoteEntryNotFoundError, RevisionNotFoundError

from dflash_hf.checkpoints.card import card_for
from dflash_hf.checkpoints.hub import HUB_FAILURES, explain
from dflash_hf.checkpoints.layouts import layout
from dflash_hf.checkpoints.write import write_checkpoint
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import HubError, OptionsError

__all__ = ["push_drafter", "save_drafter", "write_drafter"]


def save_drafter(drafter: DFlashDrafter, folder: str | os.PathLike[str]) -> None:
    """Write ``config.json``, ``model.safetensors`` and a model card, in z-lab's layout.

    Loading the folder gives the same config and the same tensors, bit for bit. A README.md that is already there
    keeps its text; its metadata is brought up to date.

    Raises:
        CheckpointError: the layout cannot express this drafter; nothing is written then.
    """
    write_drafter(drafter, Path(folder), to="zlab")


def push_drafter(
    drafter: DFlashDrafter,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    create_pr: bool = False,
) -> str:
    """Save and upload to ``repo_id``, made if it is not there; weights that lie there are replaced.

    Args:
        drafter: the drafter.
        repo_id: ``owner/name`` on the Hub.
        private: for a new repository.
        token: Hub token, or None for the stored one.
        revision: branch to write to, made if needed.
        commit_message: of the one commit this is.
        create_pr: open a pull request instead of writing to the branch.

    Returns:
        URL of the repository (of the pull request with ``create_pr``).

    Raises:
        HubError: the Hub refused or could not be reached.
        CheckpointError: z-lab's layout cannot express this drafter; nothing is sent then.
    """
    layout("zlab").describe(drafter.config, drafter.dtype)  # refuse before a repository is made
    api = HfApi(token=token, library_name="dflash_hf")
    try:
        url = str(api.create_repo(repo_id, private=private, exist_ok=True))
        if revision is not None and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        with TemporaryDirectory() as folder:
            write_drafter(drafter, Path(folder), to="zlab", repo_id=repo_id, card=_card_on_hub(api, repo_id, revision))
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                revision=revision,
                commit_message=commit_message or "Upload DFlash drafter",
                create_pr=create_pr,
                delete_patterns=["*.safetensors", "*.safetensors.index.json"],
            )
    except HFValidationError as error:
        raise OptionsError(f"{repo_id!r} is no Hub id (owner/name): {error}") from error
    except HUB_FAILURES as error:
        raise HubError(_failed_upload(error, repo_id, revision)) from error
    if create_pr:
        return str(commit.pr_url)
    return url if revision is None else f"{url}/tree/{revision}"


def write_drafter(
    drafter: DFlashDrafter, folder: Path, *, to: str, repo_id: str | None = None, card: str | None = None
) -> None:
    """Write ``drafter`` in the layout ``to``; ``card`` is the text of an existing card that is not in the folder."""
    wanted = layout(to)
    config = wanted.describe(drafter.config, drafter.dtype)
    readme = folder / "README.md"
    existing = readme.read_text(encoding="utf-8") if card is None and readme.is_file() else card
    text = card_for(drafter.config, existing, repo_id=repo_id, layout=to)
    write_checkpoint(folder, config, wanted.state(drafter), text)


def _failed_upload(error: Exception, repo_id: str, revision: str | None) -> str:
    if isinstance(error, HfHubHTTPError):
        return f"the upload did not happen: {explain(error, repo_id, revision)}"
    return f"the upload to {repo_id} broke off ({' '.join(str(error).split())}); nothing was committed, push again."


def _card_on_hub(api: HfApi, repo_id: str, revision: str | None) -> str | None:
    try:
        path = api.hf_hub_download(repo_id, "README.md", revision=revision)
    except (RemoteEntryNotFoundError, RevisionNotFoundError):
        return None
    return Path(path).read_text(encoding="utf-8")
