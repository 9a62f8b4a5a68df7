"""One architecture: what the examination says of sound ones, refused ones, and of ones that a fault of ours breaks."""

from __future__ import annotations

import pytest
import transformers

from dflash_hf.bench.targets.examine import examine
from dflash_hf.bench.targets.must_pass import MUST_PASS
from dflash_hf.bench.targets.names import Architecture, architectures, chosen
from dflash_hf.bench.targets.rows import DIFFERS, EXACT, FAILED, NOT_BUILT, REFUSED
from dflash_hf.bench.targets.shrink import tiny_config
from dflash_hf.bench.targets.sizes import HEAD_DIM, WINDOW
from dflash_hf.errors import OptionsError, UnsupportedTargetError
from dflash_hf.target.state import CropState

GEMMA = Architecture("gemma2", "Gemma2ForCausalLM")


def test_a_tiny_config_is_small_and_has_every_kind_of_layer():
    config = tiny_config(transformers.Gemma2Config)
    assert (config.hidden_size, config.num_hidden_layers, config.sliding_window) == (32, 4, WINDOW)
    assert set(config.layer_types) == set(transformers.Gemma2Config().layer_types)


def test_a_tiny_config_of_parts_has_small_parts_that_fit_each_other():
    config = tiny_config(transformers.Qwen2_5_VLConfig)
    assert config.text_config.hidden_size == config.vision_config.out_hidden_size == 32
    assert config.vision_config.depth == 1
    assert sum(config.text_config.rope_parameters["mrope_section"]) == HEAD_DIM // 2


def test_special_fields_decide_over_the_common_sizes():
    assert tiny_config(transformers.LlamaConfig, {"num_hidden_layers": 7}).num_hidden_layers == 7
    parts = tiny_config(transformers.Qwen2_5_VLConfig, {"vision_config": {"depth": 2}})
    assert (parts.vision_config.depth, parts.vision_config.hidden_size) == (2, 16)


def test_a_sound_architecture_is_exact_and_says_its_cache_and_state():
    said = []
    row = examine(GEMMA, lambda: said.append("drafting"))
    assert (row.outcome, row.why, row.state) == (EXACT, "", "crop")
    assert row.cache == "DynamicCache (DynamicSlidingWindow, Dynamic)"
    assert said == ["drafting"]


def test_a_memory_that_keeps_rejected_rows_is_found(monkeypatch):
    sound = CropState.keep
    monkeypatch.setattr(CropState, "keep", lambda state, rows: sound(state, min(rows + 1, state._taken)))
    row = examine(GEMMA)
    assert row.outcome in (DIFFERS, FAILED) and row.why.startswith("none accepted")


def test_scores_that_part_without_another_text_are_found(monkeypatch):
    from dflash_hf.target import host

    sound = host.verify

    def shifted(*args, **kwargs):
        outputs = sound(*args, **kwargs)
        outputs.logits = outputs.logits + 0.01
        return outputs

    monkeypatch.setattr(host, "verify", shifted)
    row = examine(GEMMA)
    assert row.outcome == DIFFERS and "scores of token 1, by up to 0.01" in row.why


def test_an_error_while_drafting_is_a_fault_and_not_a_refusal(monkeypatch):
    def broken(*_):
        raise KeyError("rows")

    monkeypatch.setattr(CropState, "take", broken)
    row = examine(GEMMA)
    assert (row.outcome, row.why) == (FAILED, "all accepted: KeyError: 'rows'")


def test_a_drafter_that_drafts_nothing_shows_nothing(monkeypatch):
    monkeypatch.setattr("dflash_hf.target.view.room_for_drafts", lambda *_: 0)
    row = examine(GEMMA)
    assert row.outcome == FAILED and "nothing is shown" in row.why


def test_a_target_whose_positions_begin_at_1_is_exact():
    row = examine(Architecture("paligemma", "PaliGemmaForConditionalGeneration"))
    assert row.outcome == EXACT, row.why


def test_a_refusal_is_told_in_the_products_words():
    row = examine(Architecture("mamba", "MambaForCausalLM"))
    assert row.outcome == REFUSED and "recurrent" in row.why and not row.state


def test_a_refusal_that_comes_when_the_prompt_was_read_is_a_fault(monkeypatch):
    def begin(_state, seen):
        if seen > 1:  # not at the trial of one token
            raise UnsupportedTargetError("cannot go back")

    monkeypatch.setattr(CropState, "begin", begin)
    row = examine(GEMMA)
    assert (row.outcome, row.why) == (FAILED, "refused when the prompt had been read: cannot go back")
    monkeypatch.setattr(CropState, "begin", lambda state, seen: begin(state, 2))
    row = examine(GEMMA)
    assert (row.outcome, row.why) == (REFUSED, "cannot go back")


def test_sparse_blocks_and_sliding_layers_are_built_where_an_architecture_is_made_of_them():
    made = {
        ("minimax_m3_vl_text", "MiniMaxM3VLForCausalLM"): "DynamicCache (Dynamic, MiniMaxM3VLSparseCache)",
        ("step3p7", "Step3p7ForConditionalGeneration"): "DynamicCache (Dynamic, DynamicSlidingWindow)",
    }
    for names, cache in made.items():
        row = examine(Architecture(*names))
        assert (row.outcome, row.why, row.cache) == (EXACT, "", cache)


def test_what_cannot_be_built_says_why(monkeypatch):
    def broken(_):
        raise ImportError("needs\nscipy")

    monkeypatch.setattr("dflash_hf.bench.targets.examine.build", broken)
    row = examine(GEMMA)
    assert (row.outcome, row.why) == (NOT_BUILT, "ImportError: needs scipy")


def test_names_choose_by_type_or_class_and_unknown_ones_are_refused():
    assert len(chosen(["llama4"])) == 2
    assert chosen(["llama4/Llama4ForConditionalGeneration"]) == [
        Architecture("llama4", "Llama4ForConditionalGeneration")
    ]
    assert chosen([]) == architectures() and len(architectures()) > 200
    with pytest.raises(OptionsError, match="lama9"):
        chosen(["llama", "lama9"])


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(MUST_PASS))
def test_every_promised_architecture_is_as_promised(key):
    architecture = next((each for each in architectures() if each.key == key), None)
    if architecture is None:
        pytest.skip(f"transformers {transformers.__version__} has no {key}; runs on 5.24 (make test-slow)")
    row = examine(architecture)
    assert row.outcome == MUST_PASS[key], row.why
