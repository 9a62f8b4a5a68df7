from __future__ import annotations

import threading
import time

import pytest

from dflash_hf.errors import DFlashError
from dflash_hf.pretrained.cache import MANIFEST, build_once, cache_home


def test_build_once_leaves_nothing_of_a_build_that_failed(tmp_path) -> None:
    place = tmp_path / "deep" / "thing"

    def half(folder) -> None:
        (folder / "first").write_text("1")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        build_once(place, half)
    assert not place.exists() and not list(tmp_path.rglob("*.part"))


def test_build_once_builds_once_and_keeps(tmp_path) -> None:
    built = []

    def build(folder) -> None:
        built.append(folder)
        (folder / "weights").write_text("12345")

    place = tmp_path / "thing"
    assert build_once(place, build) == build_once(place, build) == place
    assert len(built) == 1 and (place / "weights").read_text() == "12345"


@pytest.mark.parametrize("harm", ["cut", "manifest", "missing"])
def test_build_once_never_uses_a_half_written_folder(tmp_path, harm) -> None:
    place = tmp_path / "thing"
    build_once(place, lambda folder: (folder / "weights").write_text("12345"))
    if harm == "cut":
        (place / "weights").write_text("12")
    else:
        (place / (MANIFEST if harm == "manifest" else "weights")).unlink()
    build_once(place, lambda folder: (folder / "weights").write_text("67890"))
    assert (place / "weights").read_text() == "67890"


def test_build_once_sweeps_what_a_killed_process_left(tmp_path) -> None:
    left = tmp_path / ".thing.99999.part"
    left.mkdir()
    (left / "half").write_text("x")
    build_once(tmp_path / "thing", lambda folder: (folder / "weights").write_text("1"))
    assert not left.exists()


def test_build_once_lets_two_at_once_build_one(tmp_path) -> None:
    built, places = [], []

    def build(folder) -> None:
        built.append(folder)
        time.sleep(0.2)
        (folder / "weights").write_text("1")

    workers = [threading.Thread(target=lambda: places.append(build_once(tmp_path / "thing", build))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(built) == 1 and places == [tmp_path / "thing"] * 4


def test_build_once_says_how_to_move_a_cache_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DFlashError, match="DFLASH_HOME"):
        build_once(tmp_path / "file" / "thing", lambda folder: None)


def test_cache_home_follows_the_usual_variables(monkeypatch, tmp_path) -> None:
    for name in ("DFLASH_HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_home() == tmp_path / ".cache" / "dflash-hf"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert str(cache_home()) == "/x/dflash-hf"
    monkeypatch.setenv("HF_HOME", "/h")
    assert str(cache_home()) == "/h/dflash-hf"
    monkeypatch.setenv("DFLASH_HOME", "/own")
    assert str(cache_home()) == "/own"
