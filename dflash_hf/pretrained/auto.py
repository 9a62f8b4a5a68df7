"""``drafter="auto"``: the drafter that was published for a target.

In: the target's name. Out: a choice, with where it is from. First the table of known pairs, then drafters on the Hub
whose card names the target as its ``base_model``, where asking the Hub is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from huggingface_hub import HfApi, constants

from dflash_hf.checkpoints.hub import HUB_FAILURES
from dflash_hf.errors import OptionsError
from dflash_hf.pretrained.known_pairs import KNOWN_PAIRS, KnownPair
from dflash_hf.target.view import public_name

__all__ = ["AUTO", "Choice", "choose_drafter", "known_thinking"]

AUTO = "auto"
_MARKS = ("dflash", "dspark", "domino", "jetspec", "dfly", "dflare", "speculator")  # of tags and names on the Hub
_LISTED = 200


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter and why it was taken. ``drafter`` is a Hub id or a folder."""

    drafter: str
    thinking: bool | None
    why: str

    def sentence(self, target: str, revision: str | None = None) -> str:
        """What was chosen, for people; ``revision`` as asked for by them: none comes with a choice."""
        at = f" at {revision}" if revision else " at its newest revision (none is pinned: --revision, revision=)"
        mode = {
            None: "",
            True: "; it was trained on answers with thinking",
            False: "; it was trained without thinking mode, so switch thinking off",
        }
        return f'drafter="auto": {self.drafter}{at} for {public_name(target)} ({self.why}){mode[self.thinking]}'


def choose_drafter(target: str, *, local_files_only: bool = False, token: str | bool | None = None) -> Choice:
    """The drafter for ``target``, a Hub id or a folder that is called like one.

    Args:
        target: the target's name.
        local_files_only: the table only; the Hub is not asked. So is it where HF_HUB_OFFLINE is set.
        token: Hub token, or True for the stored one.

    Raises:
        OptionsError: nothing is known for this target. The message names the nearest known one and the way out.
    """
    if known := _known(target):
        licence = f", licence {known.licence}" if known.licence else ""
        return Choice(known.drafter, known.thinking, f"a known pair{licence}")
    asked = "the Hub was not asked (local_files_only or HF_HUB_OFFLINE)"
    if not local_files_only and not constants.HF_HUB_OFFLINE:
        if _is_folder(target):
            asked = "a folder has no page on the Hub that drafters could name"
        else:
            found, asked = _on_hub(target, token)
            if found is not None:
                return Choice(found, None, f"its card on the Hub names {target} as base_model")
    raise OptionsError(f'drafter="auto": no drafter is known for {public_name(target)}; {asked}. {_nearest(target)}')


def known_thinking(drafter: str) -> bool | None:
    """The thinking mode a drafter was trained in, by the table of known pairs; a folder is known by its name.

    Args:
        drafter: Hub id or folder.
    """
    folder = _is_folder(drafter)
    wanted = (_folder_name(Path(drafter)) if folder else drafter).lower()
    for pair in KNOWN_PAIRS:
        name = pair.drafter.lower()
        if wanted == (name.rpartition("/")[2] if folder else name):
            return pair.thinking
    return None


def _known(target: str) -> KnownPair | None:
    """By id; a folder is known by its name, as a clone or a snapshot of the repository has it."""
    wanted = target.lower()
    if _is_folder(target):
        name = _folder_name(Path(target)).lower()
        return next((pair for pair in KNOWN_PAIRS if pair.target.lower().rpartition("/")[2] == name), None)
    return next((pair for pair in KNOWN_PAIRS if pair.target.lower() == wanted), None)


def _is_folder(target: str) -> bool:
    return Path(target).is_absolute() or Path(target).is_dir()


def _folder_name(folder: Path) -> str:
    """Of a snapshot in the Hub's cache (``models--owner--name/snapshots/<commit>``) the repository's name."""
    cached = next((part for part in reversed(folder.parts) if part.startswith("models--")), None)
    return cached.rpartition("--")[2] if cached else folder.name


def _on_hub(target: str, token: str | bool | None) -> tuple[str | None, str]:
    """The most downloaded drafter whose card names ``target``, or why there is none."""
    try:
        models = list(
            HfApi(token=token, library_name="dflash_hf").list_models(
                filter=f"base_model:{target}", sort="downloads", limit=_LISTED
            )
        )
    except HUB_FAILURES as error:
        return None, f"the Hub could not be asked ({' '.join(str(error).split())[:160]})"
    drafters = [model for model in models if _is_drafter(model.id, model.tags or [])]
    if not drafters:
        return None, "no drafter on the Hub names it as base_model"
    return max(drafters, key=lambda model: model.downloads or 0).id, ""


def _is_drafter(name: str, tags: list[str]) -> bool:
    words = [name.rpartition("/")[2], *(tag for tag in tags if ":" not in tag)]
    return any(mark in word.lower() for word in words for mark in _MARKS)


def _nearest(target: str) -> str:
    names = {pair.target.rpartition("/")[2].lower(): pair for pair in KNOWN_PAIRS}
    close = get_close_matches(_folder_name(Path(target)).lower(), names, n=1, cutoff=0.6)
    near = f"The nearest known target is {names[close[0]].target}. " if close else ""
    return f"{near}Name a drafter (drafter=, --drafter), or train one: `dflash-hf train`, docs/training.md."
