"""The tiny pair of the commands' tests, served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_demo.pairs import Pairs
from dflash_hf.bench.pair import PairSource
from tests.cli.conftest import Files, files

__all__ = ["files"]


@pytest.fixture(autouse=True, scope="session")
def signs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where tickets keep their signs."""
    folder = tmp_path_factory.mktemp("signs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dflash_demo.visitors.gettempdir", lambda: str(folder))
        yield folder


@pytest.fixture(scope="session")
def source(files: Files) -> PairSource:
    return PairSource(str(files.target), str(files.drafter), device_map="cpu", local_files_only=True)


@pytest.fixture(scope="session")
def pairs(source: PairSource) -> Pairs:
    return Pairs(source)
