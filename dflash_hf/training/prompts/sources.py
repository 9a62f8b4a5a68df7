"""Prompts from where people keep them: JSON-lines files, chat transcripts, data sets on the Hub.

In: what stands on the command line, ``FILE[#FIELD]`` or ``hf:name[/config][:split][#column]``. Out: prompts, in the
source's order, as they come; a :class:`Tally` says how many rows were read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_hf.errors import HubError, OptionsError
from dflash_hf.training.prompts.prompts import Prompt, prompts_of
from dflash_hf.training.prompts.rows import Row, conversation, file_rows, numbered

__all__ = ["DatasetSpec", "Source", "Tally", "dataset_spec", "evaluation_texts", "source_prompts"]

_BUFFER = 10_000  # rows of a stream that are mixed at a time


@dataclass(slots=True)
class Tally:
    """What came out of one source."""

    source: str
    rows: int = 0
    prompts: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """A data set on the Hub. ``name`` is "owner/name", or "name" alone."""

    name: str
    config: str | None = None
    split: str = "train"
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """One source of the command line.

    Args:
        text: as given.
        every_turn: each user turn of a transcript is a prompt, with the turns before it; else only the first.
        wanted: how many prompts are wanted in all; None for all there are. When given, a data set is streamed in an
            order drawn with ``seed``, and no more of it is downloaded than that takes.
        seed: of a stream's order.
    """

    text: str
    every_turn: bool = False
    wanted: int | None = None
    seed: int = 0

    @property
    def is_dataset(self) -> bool:
        return self.text.startswith("hf:")

    @property
    def label(self) -> str:
        """File or data set name, without folders: what a prompt's ``source`` says."""
        return dataset_spec(self.text).name if self.is_dataset else self._file[0].name

    @property
    def _file(self) -> tuple[Path, str | None]:
        path, mark, field = self.text.rpartition("#")
        if mark and field and not Path(self.text).exists():
            return Path(path), field
        return Path(self.text), None

    @property
    def streams(self) -> bool:
        """Whether rows come one by one, in a drawn order; a slice ("train[:100]") is had as a whole only."""
        return self.is_dataset and self.wanted is not None and "[" not in dataset_spec(self.text).split

    def check(self) -> None:
        """Refuse what cannot be a source, before anything is read or downloaded.

        Raises:
            OptionsError: a malformed data set name, or no such file.
        """
        if self.is_dataset:
            dataset_spec(self.text)
        elif not self._file[0].is_file():
            raise OptionsError(
                f"{self.text}: no such file; a source is a JSON-lines file, or hf:owner/name for a data set"
            )

    def rows(self) -> tuple[Iterator[Row], str | None]:
        """Its rows, and the field that holds the prompt when one was named."""
        if self.is_dataset:
            spec = dataset_spec(self.text)
            return _dataset_rows(spec, self.wanted if self.streams else None, self.seed), spec.column
        path, field = self._file
        return file_rows(path), field


def dataset_spec(text: str) -> DatasetSpec:
    """The parts of ``hf:name[/config][:split][#column]``.

    >>> dataset_spec("hf:openai/gsm8k/main:train[:100]#question")
    DatasetSpec(name='openai/gsm8k', config='main', split='train[:100]', column='question')
    >>> dataset_spec("hf:ought/raft").name, dataset_spec("hf:squad").name
    ('ought/raft', 'squad')

    Raises:
        OptionsError: it has too many parts, or an empty one.
    """
    rest, mark, column = text.removeprefix("hf:").partition("#")
    path, colon, split = rest.partition(":")
    parts = path.split("/")
    if len(parts) > 3 or not all(parts) or (mark and not column) or (colon and not split):
        raise OptionsError(
            f"{text!r} is not hf:owner/name[/config][:split][#column]; a file is given by its path alone"
        )
    name, config = "/".join(parts[:2]), parts[2] if len(parts) == 3 else None
    return DatasetSpec(name, config, split or "train", column or None)


def source_prompts(source: Source, tally: Tally) -> Iterator[Prompt]:
    """The prompts of a source; ``tally`` counts rows and prompts on the way.

    Raises:
        OptionsError: a file cannot be read, a row has a layout we do not know, or ``datasets`` is not installed.
        HubError: a data set, its config or split cannot be had.
    """
    rows, field = source.rows()
    for row in rows:
        tally.rows += 1
        for prompt in prompts_of(row, source.label, every=source.every_turn, column=field):
            tally.prompts += 1
            yield prompt


def evaluation_texts(source: Source) -> Iterator[str]:
    """Everything users say in a source of evaluation prompts: all turns, also those that never become a prompt."""
    rows, field = source.rows()
    for row in rows:
        yield from (turn["content"] for turn in conversation(row, field) if turn["role"] == "user")


def _dataset_rows(spec: DatasetSpec, wanted: int | None, seed: int) -> Iterator[Row]:
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise OptionsError(
            f"hf:{spec.name} needs the package datasets: pip install 'dflash-hf[train]', or give a JSON-lines file"
        ) from error
    where = f"hf:{spec.name}:{spec.split}, row"
    try:
        data: Any = load_dataset(spec.name, spec.config, split=spec.split, streaming=wanted is not None)
        if wanted is not None:
            data = data.shuffle(seed=seed, buffer_size=min(_BUFFER, 10 * wanted))
        yield from numbered(where, data)
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HubError(f"cannot read the data set {spec.name} ({spec.split}): {reason}") from error
