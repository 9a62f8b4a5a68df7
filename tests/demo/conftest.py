"""The tiny pair of the commands' tests, served."""

from __future__ import annotations

import pytest

from dflash_demo.pairs import Pairs
from dflash_hf.bench.pair import PairSource
from tests.cli.conftest import Files, files

__all__ = ["files"]


@pytest.fixture(scope="session")
def source(files: Files) -> PairSource:
    return PairSource(str(files.target), str(files.drafter), device_map="cpu", local_files_only=True)


@pytest.fixture(scope="session")
def pairs(source: PairSource) -> Pairs:
    return Pairs(source)
