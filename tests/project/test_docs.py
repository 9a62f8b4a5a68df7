"""The pages name what the code has: every field, metric, option, public name, and only commands that exist."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

import dflash_hf
from dflash_hf.trace import SCHEMA, RoundRecord, Trace, merge_metrics

ROOT = Path(__file__).parents[2]
TRACE = Trace(
    prompt_tokens=3, first_token=7, rounds=[RoundRecord([1, 2, 3], 2, 9), RoundRecord([4, 5], 1, None)], block_size=4
)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def described_fields(text: str, heading: str) -> set[str]:
    """Names in the first column of the table that follows ``heading``."""
    table = text.split(heading, 1)[1].split("\n\n|", 1)[1].split("\n\n", 1)[0]
    return {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.strip("|").split("|")[0])}


def test_trace_page_describes_every_field_and_no_other() -> None:
    text = page("traces.md")
    assert described_fields(text, "## The file") == {field.name for field in fields(Trace)} | {"schema", "metrics"}
    assert described_fields(text, "A round:") == {field.name for field in fields(RoundRecord)}


def test_trace_page_defines_every_metric_and_no_other() -> None:
    text = page("traces.md").split("## The metrics", 1)[1].split("## Timings")[0]
    defined = {name for row in re.findall(r"^\|([^|]*)\|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert defined == set(merge_metrics([TRACE]))


def test_trace_schema_lists_what_a_trace_file_holds() -> None:
    schema = json.loads(re.search(r"```json\n(.*?)```", page("traces.md"), re.DOTALL).group(1))  # type: ignore[union-attr]
    data = json.loads(json.dumps(TRACE.to_dict()))
    assert schema["properties"]["schema"]["const"] == SCHEMA
    assert set(schema["properties"]) == set(data)
    assert set(schema["$defs"]["round"]["properties"]) == set(data["rounds"][0])
    required = {name: data[name] for name in schema["required"]}
    required["rounds"] = [{key: data["rounds"][0][key] for key in schema["$defs"]["round"]["required"]}]
    assert Trace.from_dict(required).tokens == [1, 2, 9]


def test_generate_page_has_every_option() -> None:
    assert described_fields(page("generate.md"), "## Options") >= {
        field.name for field in fields(dflash_hf.DFlashOptions)
    }


def test_training_page_has_every_recipe_key_and_no_other() -> None:
    from dflash_hf.training.recipe import Recipe

    keys = page("training.md").split("## Recipe keys", 1)[1].split("\n## ", 1)[0]
    first_column = [row.strip("|").split("|")[0] for row in keys.splitlines() if row.startswith("| `")]
    named = {name for cell in first_column for name in re.findall(r"`(\w+)`(?![^(]*\))", cell)}
    assert named == set(Recipe.model_fields)


def commands_in(recipe: str) -> list[list[str]]:
    """The ``dflash-hf train`` commands of a recipe's own comment, as words."""
    lines = [line.removeprefix("#").strip() for line in recipe.splitlines() if line.startswith("#")]
    joined = " ".join(line.removesuffix("\\") if line.endswith("\\") else line + "\n" for line in lines)
    return [line.split() for line in joined.splitlines() if " train recipes/" in line]


@pytest.mark.parametrize("recipe", sorted(path.name for path in ROOT.glob("recipes/*.yaml")))
def test_the_commands_a_recipe_names_can_be_read(recipe: str) -> None:
    from dflash_hf.training.recipe import Recipe

    path = ROOT / "recipes" / recipe
    for words in commands_in(path.read_text(encoding="utf-8")):
        assert f"recipes/{recipe}" in words
        overrides = [word for word in words if re.fullmatch(r"\w+=\S*", word)]
        assert Recipe.read(path, overrides).output
    assert recipe != "smollm2-135m.yaml" or len(commands_in(path.read_text(encoding="utf-8"))) == 3


@pytest.mark.parametrize("recipe", sorted(path.name for path in ROOT.glob("recipes/*.yaml")))
def test_recipes_can_be_read_and_their_drafters_served(recipe: str) -> None:
    from dflash_hf.training.recipe import Recipe

    taps = Recipe.read(ROOT / "recipes" / recipe).target_layer_ids
    assert taps is not None and list(taps) == sorted(set(taps))  # engines hand taps over in the target's order


@pytest.mark.parametrize("name", [name for name in dflash_hf.__all__ if name != "__version__"])
def test_api_page_has_every_public_name(name: str) -> None:
    assert re.search(rf":: {name}$", page("api.md"), re.MULTILINE) or name in dflash_hf._HOMES["errors"]


def test_make_targets_named_in_the_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE).group(1).split())  # type: ignore[union-attr]
    texts = [path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]]
    named = {name for text in texts for name in re.findall(r"(?:^\$ |`)make ([\w-]+)", text, re.MULTILINE)}
    assert {"run", "test"} <= named <= known


def test_install_page_lists_every_environment_variable() -> None:
    files = [*ROOT.glob("dflash_hf/**/*.py"), *ROOT.glob("tests/**/*.py")]
    used = {
        name for file in files for name in re.findall(r"[\"'](DFLASH_[A-Z_]+)[\"']", file.read_text(encoding="utf-8"))
    }
    listed = set(re.findall(r"`(DFLASH_[A-Z_]+)` \|", page("install.md")))
    assert used == listed


def test_links_between_pages_lead_somewhere() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"
