"""The cache gives what the target gives, rounded; it is bounded, survives a kill, and refuses what is not its own."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_hf.errors import TrainingError
from dflash_hf.target.view import view_target
from dflash_hf.training.documents import Document
from dflash_hf.training.features import writer as feature_writer
from dflash_hf.training.features.cache import Cached, CacheDescription, FeatureCache, bytes_on_disk, document_key
from dflash_hf.training.features.features import Features, OnTheFly
from dflash_hf.training.features.fill import documents_to_make, fill
from dflash_hf.training.features.writer import FeatureWriter
from tests.families import VOCAB
from tests.tiny import tiny_target

PLENTY = 10**9
SMALL = {"batch_tokens": 48, "shard_bytes": 8000}  # several batches and shards


@pytest.fixture(scope="module")
def view():
    return view_target(tiny_target("qwen3"))


@pytest.fixture
def documents() -> list[Document]:
    drawn = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 25, (16,), generator=drawn).tolist()
    return [
        Document(f"file/{place}", torch.randint(2, VOCAB, (length,), generator=drawn), 1)
        for place, length in enumerate(lengths)
    ]


class Counting:
    """A source that remembers what it was asked for."""

    def __init__(self, source: OnTheFly) -> None:
        self.source, self.asked = source, []

    def of(self, documents: list[Document]) -> list[Features]:
        self.asked += [document.id for document in documents]
        return self.source.of(documents)


def refuse_work() -> SimpleNamespace:
    return SimpleNamespace(of=lambda documents: pytest.fail(f"computed {[each.id for each in documents]}"))


def keys_of(documents: list[Document]) -> set[str]:
    return {document_key(document.ids) for document in documents}


def held_keys(folder: Path) -> list[str]:
    """Names of all tensors of all shards, with repetitions."""
    return [key for path in folder.glob("*.safetensors") for key in load_file(path)]


def assert_rounded(found: list[Features], computed: list[Features]) -> None:
    for mine, theirs in zip(found, computed, strict=True):
        assert mine.taps.dtype == torch.bfloat16
        torch.testing.assert_close(mine.taps, theirs.taps.bfloat16(), atol=1e-4, rtol=2**-7)
        assert (mine.final is None) == (theirs.final is None)
        if mine.final is not None and theirs.final is not None:
            torch.testing.assert_close(mine.final, theirs.final.bfloat16(), atol=1e-4, rtol=2**-7)


@pytest.mark.parametrize(
    ("layers", "final"), [([0, 1, 2], True), ([2, 0], False), ([1], True), ([3, 0], False), ([3], True)]
)
def test_cached_gives_the_layers_asked_for_in_their_order_from_a_cache_with_more(
    view, documents, tmp_path, layers, final
):
    fill(view, documents, tmp_path, [2, 0, 1], final=True, limit_bytes=PLENTY, **SMALL)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    cached = Cached(tmp_path, layers, final=final, fallback=refuse_work())
    asked = documents[::-1]
    assert_rounded(cached.of(asked), OnTheFly(view, layers, final=final).of(asked))


def test_cached_asks_the_fallback_for_what_it_lacks_and_for_changed_answers_only(view, documents, tmp_path):
    fill(view, documents[:10], tmp_path, [1, 2], limit_bytes=PLENTY, **SMALL)
    changed = replace(documents[0], ids=documents[0].ids.flip(0))
    asked = [documents[12], documents[3], changed, documents[9], documents[15]]
    counting = Counting(OnTheFly(view, [2, 1]))
    found = Cached(tmp_path, [2, 1], fallback=counting).of(asked)
    assert counting.asked == [documents[12].id, changed.id, documents[15].id]
    for features, computed in zip(found, OnTheFly(view, [2, 1]).of(asked), strict=True):
        torch.testing.assert_close(features.taps.float(), computed.taps, atol=1e-2, rtol=1e-2)
    assert [features.taps.dtype == torch.bfloat16 for features in found] == [False, True, False, True, False]


def test_cached_refuses_a_cache_that_lacks_a_layer_or_is_of_another_target(view, documents, tmp_path):
    fill(view, documents[:2], tmp_path, [1, 2], limit_bytes=PLENTY)
    with pytest.raises(TrainingError, match=r"holds features of layers 1, 2; layers 0, 1 are asked for, 0 are missing"):
        Cached(tmp_path, [1, 0], fallback=refuse_work())
    with pytest.raises(TrainingError, match=r"the last for the final state\), 3 are missing"):
        Cached(tmp_path, [1], final=True, fallback=refuse_work())
    other = view_target(tiny_target("qwen3", seed=1))
    with pytest.raises(TrainingError, match="weights .*, this target is .*weights .*another folder"):
        Cached(tmp_path, [1], fallback=OnTheFly(other, [1]))
    with pytest.raises(TrainingError, match="no feature cache"):
        Cached(tmp_path / "nowhere", [1], fallback=refuse_work())


def test_fill_refuses_a_folder_of_another_target_or_of_other_layers(view, documents, tmp_path):
    fill(view, documents[:2], tmp_path, [1, 2], limit_bytes=PLENTY)
    with pytest.raises(TrainingError, match="this target is"):
        fill(view_target(tiny_target("qwen3", seed=1)), documents, tmp_path, [1, 2], limit_bytes=PLENTY)
    with pytest.raises(TrainingError, match="0 are missing"):
        fill(view, documents, tmp_path, [0, 2], limit_bytes=PLENTY)
    report = fill(view, documents[:4], tmp_path, [2], limit_bytes=PLENTY)  # fewer layers: all of them are made
    assert report.made == 2 and FeatureCache(tmp_path).description.layer_ids == (1, 2)


def test_the_same_weights_are_the_same_target_in_another_dtype(view, documents, tmp_path):
    fill(view, documents[:2], tmp_path, [1], limit_bytes=PLENTY)
    half = tiny_target("qwen3").to(torch.bfloat16)
    assert Cached(tmp_path, [1], fallback=OnTheFly(view_target(half), [1])).of(documents[:1])


def test_a_killed_fill_goes_on_with_what_is_missing(view, documents, tmp_path):
    def killed() -> None:
        def progress(done: int, total: int) -> None:
            if bytes_on_disk(tmp_path) > 10000:
                (tmp_path / "features-00000-of-00001-00099.partial").write_bytes(b"half")
                os.kill(os.getpid(), signal.SIGKILL)

        torch.set_num_threads(1)
        fill(view, documents, tmp_path, [0, 2], limit_bytes=PLENTY, progress=progress, **SMALL)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    before = held_keys(tmp_path)
    assert 0 < len(before) < len(documents)
    tokens = []
    report = fill(
        view, documents, tmp_path, [0, 2], limit_bytes=PLENTY, progress=lambda *each: tokens.append(each), **SMALL
    )
    missing = [each for each in documents if document_key(each.ids) not in before]
    assert report.made == len(missing) and report.held == len(documents) and report.left_out == 0
    assert tokens[-1] == (sum(len(each.ids) - 1 for each in missing),) * 2
    assert sorted(held_keys(tmp_path)) == sorted(keys_of(documents)), "every document once"
    assert not list(tmp_path.glob("*.partial"))
    assert_rounded(Cached(tmp_path, [0], fallback=refuse_work()).of(documents), OnTheFly(view, [0]).of(documents))


def test_an_interrupted_fill_keeps_what_was_computed(view, documents, tmp_path):
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(view, documents, tmp_path, [0], limit_bytes=PLENTY, batch_tokens=48, progress=interrupt)
    assert len(FeatureCache(tmp_path)) > 0
    assert fill(view, documents, tmp_path, [0], limit_bytes=PLENTY).held == len(documents)


def test_fill_stops_at_its_bound_and_says_how_many_are_left_out(view, documents, tmp_path):
    limit = 16000
    report = fill(view, documents, tmp_path, [0, 1], limit_bytes=limit, **SMALL)
    assert report.bytes == bytes_on_disk(tmp_path) <= limit
    assert 0 < report.held < len(documents) and report.held + report.left_out == len(documents)
    assert set(held_keys(tmp_path)) == keys_of(documents[: report.held]), "the first ones, so that processes agree"
    assert f"{report.left_out} are beyond the bound and will be computed on the fly" in "\n".join(report.lines())
    more = fill(view, documents, tmp_path, [0, 1], limit_bytes=PLENTY, **SMALL)
    assert more.held == len(documents) and more.made == report.left_out and more.left_out == 0


@pytest.mark.parametrize("limit", [PLENTY, 16000])
def test_processes_share_the_documents_of_one_fill(view, documents, tmp_path, limit):
    whole = fill(view, documents, tmp_path / "one", [1], limit_bytes=limit, **SMALL)
    first = fill(view, documents, tmp_path / "two", [1], limit_bytes=limit, shard=(0, 2), **SMALL)
    second = fill(view, documents, tmp_path / "two", [1], limit_bytes=limit, shard=(1, 2), **SMALL)
    assert first.made and second.made and first.made + second.made == whole.made
    assert first.held + second.made == second.held == whole.held
    assert any("share of other processes" in line for line in first.lines())
    assert sorted(held_keys(tmp_path / "two")) == sorted(held_keys(tmp_path / "one"))


def test_two_processes_do_not_write_the_same_shard(view, documents, tmp_path):
    description = CacheDescription.of(view, [1], False)
    with FeatureWriter(tmp_path, description, limit_bytes=PLENTY, shard=(0, 2)):
        with pytest.raises(TrainingError, match="another process is writing features-00000-of-00002"):
            fill(view, documents, tmp_path, [1], limit_bytes=PLENTY, shard=(0, 2))
        assert fill(view, documents, tmp_path, [1], limit_bytes=PLENTY, shard=(1, 2)).made == len(documents) // 2
    assert fill(view, documents, tmp_path, [1], limit_bytes=PLENTY, shard=(0, 2)).held == len(documents)
    with pytest.raises(TrainingError, match="shard 2 of 2"):
        fill(view, documents, tmp_path, [1], limit_bytes=PLENTY, shard=(2, 2))


def test_the_bound_holds_though_another_process_fills_it_meanwhile(view, documents, tmp_path):
    description = CacheDescription.of(view, [0], False)
    limit = sum(description.document_bytes(len(document.ids)) for document in documents[:8])
    computed = OnTheFly(view, [0]).of(documents[:8])
    pairs = list(zip(documents[:8], computed, strict=True))
    with (
        FeatureWriter(tmp_path, description, limit_bytes=limit, shard=(0, 2)) as slow,
        FeatureWriter(tmp_path, description, limit_bytes=limit, shard=(1, 2)) as quick,
    ):
        for writer, share in ((slow, pairs), (quick, [*pairs[:5], *pairs[6:]])):
            assert all(writer.add(document.id, document.ids, each.taps) for document, each in share)
    assert bytes_on_disk(tmp_path) <= limit
    assert (quick.added, quick.left_out, slow.added, slow.left_out) == (7, 0, 0, 8)


def test_a_full_disk_is_said_before_work_starts(view, documents, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_writer.shutil, "disk_usage", lambda _: SimpleNamespace(free=feature_writer.SPARE_BYTES))
    monkeypatch.setattr(OnTheFly, "of", lambda *_: pytest.fail("computed"))
    with pytest.raises(TrainingError, match=r"16 documents take .* has 0 MB free; .*Nothing was computed"):
        fill(view, documents, tmp_path, [1], limit_bytes=PLENTY)


def test_a_disk_that_fills_up_loses_nothing_that_was_written(view, documents, tmp_path, monkeypatch):
    save, written = feature_writer.save_file, []

    def full(tensors: dict[str, torch.Tensor], path: Path, **options: object) -> None:
        if len(written) == 2:
            Path(path).write_bytes(b"half a shard")
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(len(tensors))
        save(tensors, path, **options)

    monkeypatch.setattr(feature_writer, "save_file", full)
    with pytest.raises(TrainingError, match="No space left.* new ones are safe") as caught:
        fill(view, documents, tmp_path, [1], limit_bytes=PLENTY, batch_tokens=48, shard_bytes=4000)
    assert f"{sum(written)} new ones are safe" in str(caught.value)
    assert len(FeatureCache(tmp_path)) == sum(written) and not list(tmp_path.glob("*.partial"))
    monkeypatch.undo()
    assert fill(view, documents, tmp_path, [1], limit_bytes=PLENTY).made == len(documents) - sum(written)


def test_writer_takes_taps_caught_while_answering(view, documents, tmp_path):
    description = CacheDescription.of(view, [0, 2], True)
    assert description.layer_ids == (0, 2, 3)
    asked = documents[:3]
    computed = OnTheFly(view, [0, 2], final=True).of(asked)
    with FeatureWriter(tmp_path, description, limit_bytes=PLENTY) as writer:
        for document, features in zip(asked, computed, strict=True):
            assert writer.add(document.id, document.ids.tolist(), features.taps, features.final)
            assert writer.add(document.id, document.ids, features.taps, features.final), "held already"
        with pytest.raises(TrainingError, match=r"d: features of shape \(4, 64\), .* takes 3 layers 32 wide"):
            writer.add("d", [1, 2, 3, 4, 5], torch.zeros(4, 64))
    assert writer.added == 3 and len(held_keys(tmp_path)) == 3
    assert_rounded(Cached(tmp_path, [0, 2], final=True, fallback=refuse_work()).of(asked), computed)
    with FeatureWriter(tmp_path, description, limit_bytes=bytes_on_disk(tmp_path)) as writer:
        assert writer.add(asked[0].id, asked[0].ids, computed[0].taps, computed[0].final)
        assert not writer.add("new", [1, 2], torch.zeros(1, 96))
    assert writer.left_out == 1


def test_writer_refuses_a_folder_that_says_otherwise(view, tmp_path):
    description = CacheDescription.of(view, [0, 2], False)
    with FeatureWriter(tmp_path, description, limit_bytes=PLENTY):
        pass
    for other, named in (
        (CacheDescription.of(view, [0, 1], False), r"another layers: .*\(0, 2\), .*\(0, 1\)"),
        (replace(description, target_fingerprint="0" * 16), "another target"),
    ):
        with pytest.raises(TrainingError, match=named), FeatureWriter(tmp_path, other, limit_bytes=PLENTY):
            pass
    with FeatureWriter(tmp_path, description, limit_bytes=PLENTY):
        pass  # a refusal gives the lock back


def test_read_hands_out_the_mapped_file_itself(view, documents, tmp_path):
    """A layer is one stretch of its shard: nothing is copied, and nothing else is read."""
    fill(view, documents, tmp_path, [0, 1, 2], limit_bytes=PLENTY)
    cache = FeatureCache(tmp_path)
    first, second = cache.read(document_key(documents[0].ids), [0, 1])
    assert first.is_contiguous() and second.data_ptr() - first.data_ptr() == first.nbytes


def test_a_damaged_cache_is_named(view, documents, tmp_path):
    fill(view, documents, tmp_path, [0], limit_bytes=PLENTY)
    (shard,) = tmp_path.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(TrainingError, match=rf"{shard.name} is damaged .*delete it"):
        FeatureCache(tmp_path)
    description = json.loads((tmp_path / "features.json").read_text())
    assert str(tmp_path) not in json.dumps(description)
    (tmp_path / "features.json").write_text(json.dumps(description | {"schema": "dflash-hf/features/9"}))
    with pytest.raises(TrainingError, match="features/9.*this version reads 'dflash-hf/features/1'"):
        FeatureCache(tmp_path)
    (tmp_path / "features.json").write_text("{")
    with pytest.raises(TrainingError, match=r"cannot read .*features.json"):
        FeatureCache(tmp_path)


def test_documents_to_make_are_the_first_that_fit(view, documents):
    description = CacheDescription.of(view, [0], False)
    sizes = [description.document_bytes(len(document.ids)) for document in documents]
    assert documents_to_make(documents, None, description, sum(sizes)) == (list(range(16)), 0)
    assert documents_to_make(documents, None, description, sum(sizes[:5]) + 1) == (list(range(5)), 11)
    assert documents_to_make([*documents, documents[0]], None, description, PLENTY) == (list(range(16)), 0)
    assert documents_to_make(documents, None, description, 0) == ([], 16)


def test_documents_with_the_same_tokens_are_one_entry_and_count_as_many(view, documents):
    description = CacheDescription.of(view, [0], False)
    first = description.document_bytes(len(documents[0].ids))
    twice = [replace(document, id=f"{document.id}@2") for document in documents]
    assert documents_to_make([*documents, *twice], None, description, PLENTY) == (list(range(16)), 0)
    assert documents_to_make([*documents, *twice], None, description, first) == ([0], 30)


def test_features_are_found_under_any_id(view, documents, tmp_path):
    """``read_folders`` renames an answer whose id an earlier folder has: its features are the same."""
    fill(view, documents, tmp_path, [1], limit_bytes=PLENTY)
    renamed = [replace(document, id=f"{document.id}@2") for document in documents]
    assert fill(view, renamed, tmp_path, [1], limit_bytes=PLENTY).made == 0
    computed = OnTheFly(view, [1]).of(documents)
    assert_rounded(Cached(tmp_path, [1], fallback=refuse_work()).of(renamed), computed)


def test_names_of_older_caches_are_read(view, documents, tmp_path):
    """A document's id, a # and twelve digits: found under any id too, and never for other tokens."""
    fill(view, documents[:9], tmp_path, [0, 1], limit_bytes=PLENTY)
    (shard,) = tmp_path.glob("*.safetensors")
    stored = load_file(shard)
    named = {document_key(document.ids): document.id for document in documents}
    save_file({f"{named[key]}#{key[:12]}": tensor.clone() for key, tensor in stored.items()}, shard)
    assert set(held_keys(tmp_path)) == {
        f"{document.id}#{hashlib.sha256(document.ids.numpy().tobytes()).hexdigest()[:12]}" for document in documents[:9]
    }, "the name as it was written"
    renamed = [replace(documents[0], id="elsewhere"), *documents[1:9]]
    changed = replace(documents[2], ids=documents[2].ids.flip(0))
    assert_rounded(Cached(tmp_path, [1], fallback=refuse_work()).of(renamed), OnTheFly(view, [1]).of(documents[:9]))
    assert document_key(changed.ids) not in FeatureCache(tmp_path)
    report = fill(view, documents, tmp_path, [0, 1], limit_bytes=PLENTY)
    assert (report.held, report.made) == (16, 7), "only what is missing is made, under the new names"
