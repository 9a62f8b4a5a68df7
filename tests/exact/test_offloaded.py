"""Targets whose weights lie elsewhere (accelerate), of another dtype than the drafter's, or with other rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dflash_hf.bench.alternatives import alternatives
from dflash_hf.bench.judge import judge
from dflash_hf.checkpoints.settle import settled
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import IncompatiblePairError, TrainingError
from dflash_hf.generation.attach import generate
from dflash_hf.generation.pair import load_pair
from dflash_hf.generation.record import last_trace
from dflash_hf.options import DFlashOptions
from dflash_hf.target.devices import computing_device
from dflash_hf.target.packing import PackedWeights
from dflash_hf.target.view import view_target
from dflash_hf.training.heads import head_parameters
from tests.exact.same import assert_same, drafter_for
from tests.scripted import tiny_config
from tests.tiny import greedy, prompt, tiny_target

NEW = 20
CALL = {"max_new_tokens": NEW, "do_sample": False}
SPLIT = {
    "model.embed_tokens": "disk", "model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
    "model.layers.2": "cpu", "model.layers.3": "disk", "model.norm": "cpu", "lm_head": "disk",
}  # fmt: skip


def cpu_offloaded(folder: Path) -> PreTrainedModel:
    from accelerate import cpu_offload

    return cpu_offload(tiny_target("llama"), execution_device=torch.device("cpu"))


def disk_offloaded(folder: Path, kind: str = "llama") -> PreTrainedModel:
    from accelerate import disk_offload

    return disk_offload(tiny_target(kind), folder / "disk", execution_device=torch.device("cpu"))


def mapped(folder: Path, **loading: Any) -> PreTrainedModel:
    tiny_target("llama").save_pretrained(folder / "target")
    options = {"device_map": SPLIT, "offload_folder": folder / "disk", "dtype": torch.float32, **loading}
    return AutoModelForCausalLM.from_pretrained(folder / "target", **options).eval()


def automatic(folder: Path) -> PreTrainedModel:
    return mapped(folder, device_map="auto", max_memory={"cpu": 90_000})


PLACES: dict[str, Callable[[Path], PreTrainedModel]] = {
    "cpu_offload": cpu_offloaded, "disk_offload": disk_offloaded, "device_map": mapped, "auto": automatic,
}  # fmt: skip


@pytest.mark.parametrize("place", sorted(PLACES))
def test_offloaded_target_drafts_the_text_of_the_whole_one(place, tmp_path):
    whole, model = tiny_target("llama"), PLACES[place](tmp_path)
    away = [name for name, weight in model.named_parameters() if weight.device.type == "meta"]
    assert away, "nothing is offloaded"
    plain = greedy(whole, prompt(), NEW)
    drafted, _ = assert_same(model, prompt(), lambda: dict(CALL))
    assert torch.equal(drafted, plain)
    assert last_trace().device == "cpu"
    assert away == [name for name, weight in model.named_parameters() if weight.device.type == "meta"]


def test_borrowed_parts_of_an_offloaded_target_give_the_same_numbers(tmp_path):
    whole, away = view_target(tiny_target("llama")), view_target(mapped(tmp_path))
    hidden = torch.randn(2, 3, 32)
    for source in ("target", "target_rows"):
        assert torch.equal(away.embed(prompt(), source), whole.embed(prompt(), source))
    assert torch.equal(away.project(hidden), whole.project(hidden))
    assert away.project(hidden.bfloat16()).dtype == torch.float32, "in the head's dtype, not the drafter's"


def test_borrowed_parts_of_a_wholly_offloaded_target_are_read_where_accelerate_brings_them(tmp_path):
    model = disk_offloaded(tmp_path)
    assert model.device.type == "meta"
    assert computing_device(model).type == view_target(model).head_device.type == "cpu"
    drafter = DFlashDrafter(tiny_config(model))
    own = settled(drafter, model).embed_tokens.weight
    assert torch.equal(own, tiny_target("llama").get_input_embeddings().weight)
    assert alternatives(drafter.config, view_target(model))
    text = greedy(tiny_target("llama"), prompt(), 6)[0, prompt().shape[1] :].tolist()
    assert judge(model, prompt(), text).gaps == [0.0] * 6


def test_loaded_drafter_is_put_beside_the_head_of_an_offloaded_target(tmp_path):
    model = disk_offloaded(tmp_path)
    DFlashDrafter(tiny_config(model)).save_pretrained(tmp_path / "drafter")
    target, drafter = load_pair(model, tmp_path / "drafter")
    assert {parameter.device.type for parameter in drafter.parameters()} == {"cpu"}
    assert torch.equal(target.generate(prompt(), **CALL), greedy(tiny_target("llama"), prompt(), NEW))


def test_packing_leaves_layers_alone_that_accelerate_brings(tmp_path):
    model = mapped(tmp_path)
    forwards = {name: vars(part).get("forward") for name, part in model.named_modules()}
    hooked = {name for name, forward in forwards.items() if forward is not None}
    assert hooked
    with PackedWeights([model, torch.nn.Linear(8, 8)], "always"):
        changed = {name for name, part in model.named_modules() if vars(part).get("forward") is not forwards[name]}
        assert not changed & hooked
    assert forwards == {name: vars(part).get("forward") for name, part in model.named_modules()}


def test_training_refuses_an_offloaded_head(tmp_path):
    with pytest.raises(TrainingError, match="that of .* is offloaded; load the target unquantised, not offloaded"):
        head_parameters(view_target(mapped(tmp_path)))


@pytest.mark.parametrize("pattern", ["all", "spoiled"])
@pytest.mark.parametrize(
    ("dtype", "drafters"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32, torch.float16)],
)
def test_drafter_in_another_dtype_drafts_the_same_text(dtype, drafters, pattern):
    model = tiny_target("llama").to(dtype)
    plain = greedy(model, prompt(), NEW)
    drafter = drafter_for(model, plain, pattern).to(drafters)
    assert torch.equal(generate(model, prompt(), assistant=drafter, **CALL), plain)
    assert drafter.dtype == drafters and model.dtype == dtype
    assert sum(record.accepted for record in last_trace().rounds) > NEW // 2


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("tied", [False, True])
def test_resized_embeddings_between_calls(kind, tied):
    model = tiny_target(kind)
    if tied:
        model.config.tie_word_embeddings = True
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    ids, random = prompt().clamp(max=80), DFlashDrafter(tiny_config(model)).eval()
    for rows in (96, 130, 88, 96):
        model.resize_token_embeddings(rows)
        assert view_target(model).vocab_rows == view_target(model).logit_columns == rows
        _, plain = assert_same(model, ids, lambda: dict(CALL))
        options = DFlashOptions(pack_weights="always")
        again = generate(model, ids, assistant=random, dflash=options, **CALL)
        assert torch.equal(again, plain)


def test_mask_that_a_smaller_embedding_lacks_is_refused():
    model = tiny_target("llama")
    drafter = DFlashDrafter(tiny_config(model, mask_token_id=95)).eval()
    model.resize_token_embeddings(90)
    with pytest.raises(IncompatiblePairError, match="its mask token is id 95, the target embeds ids 0 to 89"):
        generate(model, prompt(), assistant=drafter, **CALL)
