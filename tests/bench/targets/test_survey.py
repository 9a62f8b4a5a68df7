"""Many architectures: none stops the others, faults and broken promises are complained of, the page says it all."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from dflash_hf.bench.targets.must_pass import MUST_PASS, complaints
from dflash_hf.bench.targets.names import Architecture
from dflash_hf.bench.targets.page import page
from dflash_hf.bench.targets.rows import DIFFERS, EXACT, FAILED, FAULTS, NOT_BUILT, REFUSED, Row
from dflash_hf.bench.targets.survey import survey
from dflash_hf.cli.app import app

DOCS = Path(__file__).parents[3] / "docs" / "targets.md"
WORKER = """
import json, os, sys, time
for key in sys.argv[1:]:
    kind, name = key.split("/")
    if kind == "dies":
        os._exit(9)
    if kind.startswith("drafting"):
        print(json.dumps({"drafting": key}), flush=True)
    if kind.endswith("hangs"):
        time.sleep(60)
    print(json.dumps({"model_type": kind, "model_class": name, "outcome": "exact"}), flush=True)
"""


def kept() -> list[Row]:
    """Rows of a whole run in which every promise is kept."""
    return [Row(*key.split("/"), outcome=outcome) for key, outcome in MUST_PASS.items()]


def test_one_that_hangs_or_dies_costs_the_others_nothing():
    kinds = ["fine", "hangs", "drafting", "drafting-hangs", "dies", "fine"]
    seen: list[Row] = []
    rows = survey([Architecture(kind, "X") for kind in kinds], seen.append, 1.5, [sys.executable, "-c", WORKER])
    assert [row.model_type for row in rows] == kinds and seen == rows
    assert [row.outcome for row in rows] == [EXACT, NOT_BUILT, EXACT, FAILED, NOT_BUILT, EXACT]
    assert [rows[place].why for place in (1, 3, 4)] == [
        "it took more than 1.5 s",
        "it took more than 1.5 s",
        "its process ended with code 9",
    ]


def test_kept_promises_are_no_complaint():
    assert complaints(kept(), whole=True) == []


def test_faults_and_broken_promises_are_complained_of_by_name():
    rows = kept()
    changed = [replace(rows[0], outcome=REFUSED, why="no"), replace(rows[1], outcome=DIFFERS, why="token 3"), *rows[3:]]
    told = complaints(changed, whole=True)
    assert told == [
        f"{rows[1].key}: differs: token 3",
        f"{rows[0].key}: must be exact, is refused: no",
        f"{rows[2].key}: must be exact, and this transformers has none",
    ]
    assert complaints(changed[:1], whole=False) == told[1:2], "only what was asked for"


def test_too_many_that_were_not_built_are_complained_of():
    rows = kept()
    few = [Row("x", str(number), NOT_BUILT) for number in range(len(rows) // 9)]
    assert complaints(rows + few, whole=True) == []
    assert "were not built" in complaints(rows + few * 2, whole=True)[0]
    assert complaints(rows + few * 2, whole=False) == []


def test_the_page_keeps_to_its_columns_and_shortens_refusals():
    odd = Row("odd", "OddForCausalLM", NOT_BUILT, "TypeError: int | None <x>")
    why = "OddForCausalLM (OddForCausalLM) has recurrent layers (those() of X), whose state cannot go back; call it."
    text = page([odd, replace(odd, outcome=REFUSED, why=why, cache="DynamicCache")], "5.24.0", window=8, new=40)
    assert text.splitlines()[-2:] == [
        r"| `odd` | `OddForCausalLM` | - | - | not built: TypeError: int \| None \<x\> |",
        "| `odd` | `OddForCausalLM` | DynamicCache | - | refused: has recurrent layers, whose state cannot go back |",
    ]
    assert "transformers 5.24.0" in text and "1 refused, 1 not built" in text


def test_the_shipped_page_keeps_the_promises():
    rows = [
        [cell.strip() for cell in line.split(" | ")]
        for line in DOCS.read_text("utf-8").splitlines()
        if line[:3] == "| `"
    ]
    shown = [Row(row[0].strip("| `"), row[1].strip("`"), row[4].strip("| ").split(":")[0]) for row in rows]
    assert len(shown) > 200 and complaints(shown, whole=True) == []


def test_the_command_writes_the_page_and_fails_on_faults(monkeypatch, tmp_path):
    llama = Row("llama", "LlamaForCausalLM", EXACT, cache="DynamicCache", state="crop")
    asked = []

    def surveyed(architectures, tell, limit):
        asked.append([each.key for each in architectures])
        tell(llama)
        return [llama]

    monkeypatch.setattr("dflash_hf.bench.targets.survey.survey", surveyed)
    out = tmp_path / "targets.md"
    good = CliRunner().invoke(app, ["targets", "llama", "--json", "--out", str(out)])
    assert good.exit_code == 0, good.stderr
    body = json.loads(good.stdout)
    assert body["schema"] == "dflash-hf/targets/1" and body["counts"] == {EXACT: 1} and body["complaints"] == []
    assert asked == [["llama/LlamaForCausalLM"]] and "| `llama` |" in out.read_text()
    for fault in FAULTS:
        llama = replace(llama, outcome=fault, why="token 3")
        bad = CliRunner().invoke(app, ["targets", "llama"])
        assert bad.exit_code == 3 and f"FAILED: llama/LlamaForCausalLM: {fault}: token 3" in bad.stdout
    assert CliRunner().invoke(app, ["targets", "lama9"]).exit_code == 2
