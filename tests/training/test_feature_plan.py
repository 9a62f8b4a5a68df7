"""The plan's figures are what filling and reading really take, and its choice follows from them."""

from __future__ import annotations

import pytest
import torch

from dflash_hf.errors import TrainingError
from dflash_hf.target.view import view_target
from dflash_hf.training.documents import Document
from dflash_hf.training.features import plan as feature_plan
from dflash_hf.training.features.cache import FeatureCache
from dflash_hf.training.features.fill import fill
from dflash_hf.training.features.plan import measured_speed, plan
from tests.tiny import tiny_target

PLENTY = 10**9
GIVEN = {"limit_bytes": PLENTY, "free_bytes": PLENTY, "epochs": 3, "tokens_per_second": 10.0}


@pytest.fixture(scope="module")
def view():
    return view_target(tiny_target())


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return [Document(f"d{place}", torch.arange(2, 2 + 11 + place), 1) for place in range(10)]


TOKENS = sum(10 + place for place in range(10))


def test_plan_counts_tokens_bytes_and_seconds(view, documents, tmp_path):
    made = plan(documents, view, [0, 2], final=True, **GIVEN)
    assert (made.mode, made.tokens, made.layer_ids, made.held) == ("cached", TOKENS, (0, 2, 3), 0)
    assert made.online_seconds == pytest.approx(3 * TOKENS / 10) and made.cached_seconds == pytest.approx(TOKENS / 10)
    assert made.missing_bytes == made.whole_bytes
    written = fill(view, documents, tmp_path, [0, 2], final=True, limit_bytes=PLENTY).bytes
    assert 0.5 * made.whole_bytes < written <= made.whole_bytes
    again = plan(documents, view, [0], cached_already=FeatureCache(tmp_path), **GIVEN)
    assert (again.held, again.missing_bytes, again.cached_seconds) == (10, 0, 0.0)
    assert again.disk_bytes == written and again.layer_ids == (0, 2, 3)


def test_plan_counts_the_documents_beyond_the_bound_in_every_epoch(view, documents, tmp_path):
    fill(view, documents[:4], tmp_path, [0], limit_bytes=PLENTY)
    cache = FeatureCache(tmp_path)
    bound = cache.bytes + cache.description.document_bytes(len(documents[4].ids))
    made = plan(
        documents, view, [0], mode="cached", cached_already=cache, epochs=3, limit_bytes=bound, free_bytes=PLENTY,
        tokens_per_second=10.0,
    )  # fmt: skip
    outside = sum(len(document.ids) - 1 for document in documents[5:])
    assert (made.mode, made.held, made.left_out) == ("cached", 4, 5)
    assert made.fill_seconds == pytest.approx(1.4) and made.cached_seconds == pytest.approx(1.4 + 3 * outside / 10)


@pytest.mark.parametrize(
    ("change", "mode", "reason"),
    [
        ({}, "cached", "which saves 29 s"),
        ({"epochs": 1}, "online", "each document is read once"),
        ({"limit_bytes": 5000}, "online", "do not fit the bound"),
        ({"free_bytes": 5000}, "online", "no disk for another"),
        ({"mode": "online"}, "online", "as asked"),
        ({"mode": "cached", "epochs": 1}, "cached", "as asked"),
        ({"mode": "cached", "limit_bytes": 5000, "free_bytes": 5000}, "cached", "as asked"),
    ],
)
def test_plan_chooses_by_bound_disk_and_time(view, documents, change, mode, reason):
    made = plan(documents, view, [1], **(GIVEN | change))
    assert made.mode == mode and reason in made.reason
    assert made.lines()[-1].endswith(made.reason)


def test_plan_reads_once_from_a_cache_that_has_all(view, documents, tmp_path):
    fill(view, documents, tmp_path, [1], limit_bytes=PLENTY)
    assert plan(documents, view, [1], cached_already=FeatureCache(tmp_path), **(GIVEN | {"epochs": 1})).mode == "cached"


def test_plan_shows_both_costs(view, documents):
    text = "\n".join(plan(documents, view, [1, 2], **GIVEN).lines())
    assert f"10 documents, {TOKENS} tokens, layers 1, 2; the target reads 10 tokens/s" in text
    assert "on the fly: 14 s of the target an epoch, 44 s in 3 epochs" in text
    assert "cached: 14 s of the target in 3 epochs; 0 documents are held" in text


def test_plan_refuses_what_cannot_be(view, documents, tmp_path):
    with pytest.raises(TrainingError, match="takes 0 MB more, 0 MB are free"):
        plan(documents, view, [1], **(GIVEN | {"mode": "cached", "free_bytes": 100}))
    with pytest.raises(TrainingError, match="no documents"):
        plan([], view, [1], **GIVEN)
    fill(view, documents[:1], tmp_path, [1], limit_bytes=PLENTY)
    with pytest.raises(TrainingError, match="2 are missing"):
        plan(documents, view, [1, 2], cached_already=FeatureCache(tmp_path), **(GIVEN | {"mode": "cached"}))


def test_plan_times_the_target_only_when_its_speed_is_not_given(view, documents, monkeypatch):
    monkeypatch.setattr(feature_plan, "measured_speed", lambda *_args, **_options: 7.0)
    assert plan(documents, view, [1], **GIVEN).tokens_per_second == 10.0
    assert plan(documents, view, [1], **(GIVEN | {"tokens_per_second": None})).tokens_per_second == 7.0


def test_measured_speed_runs_one_batch_after_one_document(view, documents):
    shapes = []
    handle = view.decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    assert measured_speed(view, documents, [1], batch_tokens=60) > 0
    handle.remove()
    assert len(shapes) == 2 and shapes[0][0] == 1 and shapes[1][0] >= 1


def test_plan_goes_on_the_fly_beside_a_cache_it_cannot_read_and_shows_the_refusal(view, documents, tmp_path):
    fill(view, documents, tmp_path / "layers", [1], limit_bytes=PLENTY)
    other = view_target(tiny_target(seed=1))
    fill(other, documents, tmp_path / "target", [1], limit_bytes=PLENTY)
    for folder, layers, said in (("layers", [1, 2], "2 are missing"), ("target", [1], "this target is")):
        cache = FeatureCache(tmp_path / folder)
        made = plan(documents, view, layers, cached_already=cache, **GIVEN)
        assert made.mode == "online" and said in made.reason and made.lines()[-1].endswith(made.reason)
        assert (made.held, made.disk_bytes, made.layer_ids) == (0, 0, tuple(layers))
        made = plan(documents, view, layers, cached_already=cache, **(GIVEN | {"mode": "online"}))
        assert (made.mode, made.reason) == ("online", "as asked")
