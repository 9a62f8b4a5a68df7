"""Names for people and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_hf.target.view import public_name


def test_a_folder_is_called_by_its_own_name_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "models")
    assert {public_name(name) for name in ("tiny", "tiny/", str(tmp_path / "models/tiny"), "../models/tiny")} == {
        "tiny"
    }
    assert public_name(".") == "models" and public_name("..") == tmp_path.name
    assert public_name("owner/name") == "owner/name"
