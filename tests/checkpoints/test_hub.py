"""The real huggingface-hub client against a small Hub on loopback: what can go wrong is one clear sentence each."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from dflash_hf import DFlashDrafter
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.errors import CheckpointError, HubError, OptionsError
from tests.checkpoints.hub_server import MAIN, Hub, running
from tests.checkpoints.tiny import MASK, tiny_config, tiny_tensors, write_tiny

SECOND = "2" * 40


def files_of(folder: Path, seed: int = 0, prefix: str = "") -> dict[str, bytes]:
    write_tiny(folder, tensors=tiny_tensors(tiny_config(), seed=seed))
    (folder / "README.md").write_text("---\nbase_model: owner/target\n---\n")
    return {f"{prefix}{path.name}": path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with ``owner/drafter``, and the client pointed at it with an empty cache and short patience."""
    with running(Hub()) as hub:
        files = files_of(tmp_path / "served")
        hub.add("owner/drafter", files | {"dflash.py": b"raise SystemExit", "pytorch_model.bin": b"no"})
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        real = time.sleep
        monkeypatch.setattr(
            time, "sleep", lambda seconds: real(min(seconds, 0.01))
        )  # the client's pauses between tries
        yield hub


def weights(drafter: DFlashDrafter) -> torch.Tensor:
    return drafter.state_dict()["fusion.fc.weight"]


def test_load_takes_what_it_needs_and_pins_the_commit(hub: Hub) -> None:
    drafter = load_drafter("owner/drafter")
    assert torch.equal(weights(drafter), tiny_tensors(tiny_config())["fc.weight"])
    told = drafter.provenance
    assert (told.source, told.revision) == ("owner/drafter", MAIN)
    assert drafter.config.target_name == "owner/target"
    assert drafter.config._name_or_path == "owner/drafter"
    assert not [line for line in hub.requests if line.endswith((".py", ".bin"))]


def test_a_revision_is_resolved_to_its_commit(hub: Hub, tmp_path: Path) -> None:
    repo = hub.repos["owner/drafter"]
    repo.commits[SECOND] = files_of(tmp_path / "second", seed=5)
    repo.refs["next"] = SECOND
    newer = load_drafter("owner/drafter", revision="next")
    assert newer.provenance.revision == SECOND
    assert torch.equal(weights(newer), tiny_tensors(tiny_config(), seed=5)["fc.weight"])
    assert load_drafter("owner/drafter", revision=SECOND).provenance.revision == SECOND
    assert load_drafter("owner/drafter").provenance.revision == MAIN


def test_a_moved_branch_is_followed(hub: Hub, tmp_path: Path) -> None:
    load_drafter("owner/drafter")
    repo = hub.repos["owner/drafter"]
    repo.commits[SECOND] = files_of(tmp_path / "second", seed=5)
    repo.refs["main"] = SECOND
    again = load_drafter("owner/drafter")
    assert again.provenance.revision == SECOND
    assert torch.equal(weights(again), tiny_tensors(tiny_config(), seed=5)["fc.weight"])


def test_subfolder_of_a_repository(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/target", {"config.json": b"{}", **files_of(tmp_path / "sub", seed=7, prefix="draft/v1/")})
    drafter = load_drafter("owner/target", subfolder="draft/v1")
    assert torch.equal(weights(drafter), tiny_tensors(tiny_config(), seed=7)["fc.weight"])
    assert (drafter.provenance.source, drafter.provenance.revision) == ("owner/target/draft/v1", MAIN)
    assert "GET /owner/target/resolve/main/config.json" not in hub.requests
    offline = load_drafter("owner/target", subfolder="draft/v1", local_files_only=True)
    assert torch.equal(weights(offline), weights(drafter))


def test_shards_come_along(hub: Hub, tmp_path: Path) -> None:
    from tests.checkpoints.test_load import shard

    files_of(tmp_path / "sharded")
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    shard(tmp_path / "sharded", names, tiny_tensors(tiny_config()), "model.safetensors.index.json")
    hub.add("owner/sharded", {path.name: path.read_bytes() for path in (tmp_path / "sharded").iterdir()})
    assert load_drafter("owner/sharded").provenance.files == ("config.json", *names)


def test_a_gated_repository(hub: Hub) -> None:
    hub.repos["owner/drafter"].gated = True
    with pytest.raises(HubError, match=r"owner/drafter is gated: ask for access on its page .* pass token="):
        load_drafter("owner/drafter")
    assert load_drafter("owner/drafter", token="hf_allowed").provenance.revision == MAIN


def test_a_missing_repository(hub: Hub) -> None:
    with pytest.raises(
        HubError, match="owner/nothing is no folder here and does not exist on .*, or is private: check the spelling"
    ):
        load_drafter("owner/nothing")


def test_a_wrong_revision(hub: Hub) -> None:
    with pytest.raises(HubError, match="owner/drafter has no revision 'v9': leave revision out"):
        load_drafter("owner/drafter", revision="v9")


def test_a_repository_without_a_drafter(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/empty", {"README.md": b""})
    with pytest.raises(HubError, match=r"owner/empty has no config\.json at commit 1+; is this the right repository"):
        load_drafter("owner/empty")
    hub.add("owner/elsewhere", files_of(tmp_path / "sub", prefix="dflash/"))
    with pytest.raises(HubError, match="there is one in subfolder='dflash'"):
        load_drafter("owner/elsewhere")


def test_a_file_that_is_listed_and_not_delivered(hub: Hub) -> None:
    hub.lost.add("model.safetensors")
    with pytest.raises(HubError, match=r"owner/drafter lists model\.safetensors and does not deliver it"):
        load_drafter("owner/drafter")


def test_a_hub_that_fails(hub: Hub) -> None:
    hub.broken = True
    with pytest.raises(HubError, match=r"the Hub answered for owner/drafter with an error .*: try again later"):
        load_drafter("owner/drafter")


def test_no_answer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"owner/drafter could not be fetched: .* pass local_files_only=True"):
        load_drafter("owner/drafter")


def test_offline_reads_the_cache_and_nothing_else(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match=r"owner/drafter is not in the local cache, and the network is switched off"):
        load_drafter("owner/drafter", local_files_only=True)
    online = load_drafter("owner/drafter")
    asked = len(hub.requests)
    offline = load_drafter("owner/drafter", local_files_only=True)
    assert offline.provenance == online.provenance
    assert torch.equal(weights(offline), weights(online))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_drafter("owner/drafter").provenance.revision == MAIN
    with pytest.raises(HubError, match="owner/drafter at revision next is not in the local cache"):
        load_drafter("owner/drafter", revision="next")
    assert len(hub.requests) == asked


@pytest.mark.parametrize("cut", ["model.safetensors", "config.json"])
def test_a_cut_download_is_never_taken_as_whole(cut: str, hub: Hub, tmp_path: Path) -> None:
    hub.cut.add(cut)
    with pytest.raises(HubError, match=rf"{cut} .*(cut short|broke off).*nothing half is kept as whole"):
        load_drafter("owner/drafter")
    whole = hub.repos["owner/drafter"].commits[MAIN]
    for path in (tmp_path / "cache").rglob("snapshots/*/*"):
        assert path.read_bytes() == whole[path.name], f"{path.name} is in the cache, but not whole"
    with pytest.raises(HubError, match="not in the local cache|is incomplete"):
        load_drafter("owner/drafter", local_files_only=True)
    hub.cut.clear()
    drafter = load_drafter("owner/drafter")
    assert torch.equal(weights(drafter), tiny_tensors(tiny_config())["fc.weight"])


def test_names_that_are_no_id(hub: Hub) -> None:
    for name in ("owner/dra fter", "owner/..", "-x/y"):
        with pytest.raises(CheckpointError, match="neither a folder nor a Hub id"):
            load_drafter(name)
    assert not hub.requests


def test_push_and_load_again(hub: Hub, tmp_path: Path) -> None:
    write_tiny(tmp_path / "mine", tensors=tiny_tensors(tiny_config(), seed=9))
    drafter = load_drafter(tmp_path / "mine")
    drafter.config.target_name = "owner/target"
    url = drafter.push_to_hub("owner/new", token="hf_allowed", commit_message="First")
    assert url == f"{hub.url}/owner/new"
    again = load_drafter("owner/new")
    assert torch.equal(weights(again), weights(drafter))
    assert again.config.target_name == "owner/target"
    stored = hub.repos["owner/new"].commits[hub.repos["owner/new"].refs["main"]]
    assert sorted(stored) == [".gitattributes", "README.md", "config.json", "model.safetensors"]
    assert b'from_pretrained("owner/new"' in stored["README.md"]


def test_push_keeps_a_cards_text_and_replaces_shards(hub: Hub, tmp_path: Path) -> None:
    old = {
        "README.md": b"---\nlicense: mit\n---\n# Theirs\n",
        "model-00001-of-00001.safetensors": b"old",
        "model.safetensors.index.json": b"{}",
        "notes.txt": b"keep",
    }
    hub.add("owner/old", old)
    write_tiny(tmp_path / "mine")
    url = load_drafter(tmp_path / "mine").push_to_hub("owner/old", token="hf_allowed", revision="next")
    assert url == f"{hub.url}/owner/old/tree/next"
    repo = hub.repos["owner/old"]
    assert repo.commits[repo.refs["main"]] == old
    stored = repo.commits[repo.refs["next"]]
    assert sorted(stored) == ["README.md", "config.json", "model.safetensors", "notes.txt"]
    assert stored["README.md"].decode().endswith("# Theirs\n") and b"license: mit" in stored["README.md"]


def test_push_that_is_refused(hub: Hub, tmp_path: Path) -> None:
    write_tiny(tmp_path / "mine")
    drafter = load_drafter(tmp_path / "mine")
    with pytest.raises(HubError, match="the upload did not happen"):
        drafter.push_to_hub("owner/new", token="hf_wrong")
    with pytest.raises(OptionsError, match="no Hub id"):
        drafter.push_to_hub("not a name", token="hf_allowed")
    assert "owner/new" not in hub.repos


def test_push_without_an_answer(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path / "mine")
    drafter = load_drafter(tmp_path / "mine")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match="the upload to owner/new broke off .* nothing was committed, push again"):
        drafter.push_to_hub("owner/new", token="hf_allowed")


def test_a_cache_that_cannot_be_written(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(HubError, match=r"config\.json could not be kept: .* pass cache_dir="):
        load_drafter("owner/drafter", cache_dir=str(tmp_path / "taken"))


def test_hf_endpoint_is_all_it_takes(hub: Hub, tmp_path: Path) -> None:
    """A process of its own, told nothing but the environment variable."""
    code = "import sys, dflash_hf; print(dflash_hf.DFlashDrafter.from_pretrained(sys.argv[1]).provenance.revision)"
    environment: dict[str, Any] = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    environment |= {"HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code, "owner/drafter"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.strip() == MAIN, run.stderr


def test_a_mask_embedding_comes_along(hub: Hub, tmp_path: Path) -> None:
    """A drafter in a target's repository, as MiMo's lies in one; and again from the cache."""
    files = files_of(tmp_path / "mimo", prefix="dflash/")
    row = io.BytesIO()
    torch.save({"embedding": torch.ones(12), "mask_token_id": MASK}, row)
    others = {"dflash/other.pt": b"no", "mask_embedding.pt": b"another's"}
    hub.add("owner/target-with-drafter", files | {"dflash/mask_embedding.pt": row.getvalue()} | others)
    for offline in (False, True):
        drafter = load_drafter("owner/target-with-drafter", subfolder="dflash", local_files_only=offline)
        assert torch.equal(drafter.mask_embedding.detach(), torch.ones(12))
        assert "mask_embedding.pt" in drafter.provenance.files
    fetched = [line for line in hub.requests if line.endswith(".pt")]
    assert fetched and all(line.endswith("/dflash/mask_embedding.pt") for line in fetched)
