"""``drafter="auto"``: the table, then the Hub's cards, and what it says when it knows nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from dflash_hf import load_pair
from dflash_hf.bench.pair import PairSource
from dflash_hf.errors import DFlashWarning, OptionsError
from dflash_hf.generation import pair
from dflash_hf.pretrained.auto import choose_drafter, known_thinking
from dflash_hf.pretrained.known_pairs import KNOWN_PAIRS
from tests.checkpoints.hub_server import Hub, running


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running(Hub()) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub


def test_a_known_pair_is_taken_without_asking_anybody(hub: Hub) -> None:
    choice = choose_drafter("Qwen/Qwen3-8B")
    assert choice.drafter == "z-lab/Qwen3-8B-DFlash-b16" and choice.thinking is False
    assert "switch thinking off" in choice.sentence("Qwen/Qwen3-8B")
    assert "newest revision (none is pinned" in choice.sentence("Qwen/Qwen3-8B")
    assert "DFlash-b16 at abc for" in choice.sentence("Qwen/Qwen3-8B", "abc")
    assert hub.requests == []


@pytest.mark.parametrize("folder", ["Qwen3-8B", "models--Qwen--Qwen3-8B/snapshots/" + "1" * 40])
def test_a_folder_is_known_by_its_name(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    assert choose_drafter(str(tmp_path / folder), local_files_only=True).drafter == "z-lab/Qwen3-8B-DFlash-b16"


def test_a_card_on_the_hub_is_found(hub: Hub) -> None:
    base = "base_model:owner/target"
    hub.add("owner/target-quantised", {}, tags=[base, "gguf"], downloads=900)
    hub.add("owner/first", {}, tags=[base, "dflash"], downloads=5)
    hub.add("owner/second", {}, tags=[base, "dflash"], downloads=7)
    hub.add("owner/other-dflash", {}, tags=["base_model:owner/elsewhere", "dflash"], downloads=99)
    choice = choose_drafter("owner/target")
    assert choice.drafter == "owner/second" and "base_model" in choice.why


@pytest.mark.parametrize("offline", ["argument", "environment"])
def test_offline_the_hub_is_not_asked(offline: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("owner/drafter", {}, tags=["base_model:owner/target", "dflash"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline == "environment")
    with pytest.raises(OptionsError, match="the Hub was not asked"):
        choose_drafter("owner/target", local_files_only=offline == "argument")
    assert hub.requests == []


@pytest.mark.slow
def test_an_unknown_target_gets_the_nearest_and_the_way_out(hub: Hub) -> None:
    with pytest.raises(OptionsError, match=r"names it as base_model\. The nearest known target is Qwen/Qwen3-8B") as e:
        choose_drafter("Qwen/Qwen3-8B-Base")
    assert "--drafter" in str(e.value) and "dflash-hf train" in str(e.value)
    hub.broken = True
    with pytest.raises(OptionsError, match="could not be asked"):
        choose_drafter("owner/nothing-like-it")


def test_no_target_has_two_rows_of_one_drafter() -> None:
    assert len({(each.target, each.drafter) for each in KNOWN_PAIRS}) == len(KNOWN_PAIRS)
    assert all(each.target.count("/") == each.drafter.count("/") == 1 for each in KNOWN_PAIRS)


def test_load_pair_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(name: str, **options: object) -> None:
        asked.append((name, options["revision"]))
        raise OptionsError("far enough")

    monkeypatch.setattr(pair.DFlashDrafter, "from_pretrained", refuse)
    with pytest.warns(DFlashWarning, match='drafter="auto": z-lab/Qwen3-4B'), pytest.raises(OptionsError, match="far"):
        load_pair("Qwen/Qwen3-4B", "auto", revision="abc", local_files_only=True)
    assert asked == [("z-lab/Qwen3-4B-DFlash-b16", "abc")]


def test_a_source_of_commands_says_it_too() -> None:
    said: list[str] = []
    source = PairSource("Qwen/Qwen3-4B", "auto", local_files_only=True).chosen(said.append)
    assert source.drafter == "z-lab/Qwen3-4B-DFlash-b16" and len(said) == 1
    assert PairSource(None, "auto").chosen().drafter is None


@pytest.mark.parametrize("folder", ["Qwen3-8B-DFlash-b16", "models--z-lab--Qwen3-8B-DFlash-b16/snapshots/" + "1" * 40])
def test_how_a_drafter_was_trained_is_known_by_its_name(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    assert known_thinking("z-lab/Qwen3-8B-DFlash-b16") is known_thinking(str(tmp_path / folder)) is False
    assert known_thinking("RedHatAI/Qwen3-8B-speculator.dflash") is None
    assert known_thinking("owner/Qwen3-8B-DFlash-b16") is None
