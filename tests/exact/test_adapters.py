"""PEFT adapters on the target: switched, disabled and merged between calls, on any layer, embedding and head too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import (
    DFlashWarning,
    IncompatiblePairError,
    OptionsError,
    TrainingError,
    UnsupportedCallError,
    UnsupportedTargetError,
)
from dflash_hf.generation.attach import attach, generate
from dflash_hf.generation.record import last_trace
from dflash_hf.options import DFlashOptions
from dflash_hf.target.pairing import check_pair
from dflash_hf.target.view import view_target
from dflash_hf.training.heads import head_parameters
from tests.exact.same import assert_same, drafter_for
from tests.scripted import tiny_config
from tests.tiny import greedy, prompt, tiny_target

peft = pytest.importorskip("peft", reason="peft is not installed; runs with make test, which installs it")

NEW = 20
PACKED = DFlashOptions(pack_weights="always")
CALL: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "all_linear": {"target_modules": "all-linear"},
    "head_and_embedding": {"target_modules": ["q_proj", "lm_head", "embed_tokens"]},
    "saved_modules": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    "new_tokens": {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [1, 5]}},
}


def adapted(setting: str, kind: str = "llama", seed: int = 0) -> Any:
    """A PEFT model whose adapter changes the text."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, task_type="CAUSAL_LM", **SETTINGS[setting])
    model = peft.get_peft_model(tiny_target(kind), config).eval()
    with torch.no_grad():  # copies of modules, and tokens, start as what they replace
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def drafted_like(model: PreTrainedModel, plain: Tensor, pattern: str = "spoiled") -> None:
    """Drafted with packed weights, the model says ``plain``, and some of the draft was kept."""
    drafter = drafter_for(model, plain, pattern)
    assert torch.equal(generate(model, prompt(), assistant=drafter, dflash=PACKED, **CALL), plain)
    assert sum(record.accepted for record in last_trace().rounds) > NEW // 2


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_adapted_target_drafts_its_own_text(setting):
    model = adapted(setting)
    inner = model.get_base_model()
    plain = greedy(inner, prompt(), NEW)
    assert not torch.equal(plain, greedy(tiny_target("llama"), prompt(), NEW)), "the adapter changes nothing"
    drafted_like(inner, plain, "all")
    drafted_like(inner, plain)


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_borrowed_parts_of_an_adapted_target_are_the_ones_it_uses(setting):
    inner = adapted(setting).get_base_model()
    view, seen = view_target(inner), {}
    hooks = [
        view.decoder.register_forward_hook(lambda _m, _a, output: seen.update(hidden=output.last_hidden_state)),
        view.layers[0].register_forward_pre_hook(lambda _m, args: seen.update(embeds=args[0])),
    ]
    with torch.no_grad():
        logits = inner(prompt()).logits
        for hook in hooks:
            hook.remove()
        for source in ("target", "target_rows"):
            assert torch.equal(view.embed(prompt(), source), seen["embeds"])
        assert torch.equal(view.project(seen["hidden"]), logits)
    assert view.vocab_rows == view.logit_columns == 96


def test_adapters_switched_disabled_and_merged_between_calls():
    model = adapted("all_linear")
    inner = model.get_base_model()
    model.add_adapter("other", peft.LoraConfig(r=4, init_lora_weights=False, target_modules=["o_proj", "lm_head"]))
    texts = []

    def step() -> None:
        texts.append(greedy(inner, prompt(), NEW))
        drafted_like(inner, texts[-1])

    step()
    model.set_adapter("other")
    step()
    with model.disable_adapter():
        step()
    step()
    model.merge_adapter()  # writes into the weights whose copies are kept
    step()
    model.unmerge_adapter()
    step()
    assert len({tuple(text.flatten().tolist()) for text in texts[:3]}) == 3
    assert torch.equal(texts[2], greedy(tiny_target("llama"), prompt(), NEW))
    merged = model.merge_and_unload()
    drafted_like(merged, greedy(merged, prompt(), NEW))


def test_adapter_in_the_model_itself_as_transformers_loads_one():
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "up_proj"])
    model = peft.inject_adapter_in_model(config, tiny_target("llama"), "mine").eval()
    plain = greedy(model, prompt(), NEW)
    drafted_like(model, plain)
    for part in model.modules():
        if isinstance(part, peft.tuners.tuners_utils.BaseTunerLayer):
            part.enable_adapters(False)
    assert not torch.equal(greedy(model, prompt(), NEW), plain)
    drafted_like(model, greedy(model, prompt(), NEW))


def test_peft_models_own_generate_drafts_through_the_attached_model_inside():
    model = adapted("attention")
    plain = model.generate(input_ids=prompt(), **CALL)
    attach(model.get_base_model(), drafter_for(model.get_base_model(), plain, "spoiled"))
    assert torch.equal(model.generate(input_ids=prompt(), **CALL), plain)
    assert last_trace().fallback is None and sum(record.accepted for record in last_trace().rounds) > NEW // 2
    with model.disable_adapter():
        drafted = model.generate(input_ids=prompt(), **CALL)
    assert torch.equal(drafted, greedy(tiny_target("llama"), prompt(), NEW))


def test_peft_model_itself_is_refused_with_the_way_out():
    model = adapted("attention")
    drafter = DFlashDrafter(tiny_config(model.get_base_model()))
    with pytest.raises(UnsupportedTargetError, match=r"peft's; attach .* inside it \(model.get_base_model\(\)\)"):
        attach(model, drafter)
    with pytest.raises(OptionsError, match="get_base_model"):
        attach(model)


@pytest.mark.parametrize("tuning", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_virtual_tokens_are_refused_and_the_attached_default_runs_plainly(tuning):
    config = getattr(peft, tuning)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(tiny_target("llama"), config).eval()
    plain = model.generate(input_ids=prompt(), **CALL)
    drafter = drafter_for(model.get_base_model(), plain, "spoiled")
    attach(model.get_base_model(), drafter)
    with pytest.raises(UnsupportedCallError, match="prompt or prefix tuning"):
        model.generate(input_ids=prompt(), assistant=drafter, **CALL)
    with pytest.warns(DFlashWarning, match="prompt or prefix tuning"):
        assert torch.equal(model.generate(input_ids=prompt(), **CALL), plain)
    assert "prompt or prefix tuning" in last_trace().fallback
    assert_same(model.get_base_model(), prompt(), lambda: dict(CALL))  # without them it drafts again


@pytest.mark.parametrize("setting", ["head_and_embedding", "saved_modules", "new_tokens"])
def test_scaled_rows_under_an_adapter_are_refused(setting):
    inner = adapted(setting, "gemma3").get_base_model()
    with pytest.raises(IncompatiblePairError, match="cannot be read: it is wrapped by an adapter"):
        check_pair(inner, DFlashDrafter(tiny_config(inner, embedding="target_rows")))
    assert_same(inner, prompt(), lambda: dict(CALL))  # as the target scales them: the module does it


@pytest.mark.parametrize("setting", ["head_and_embedding", "saved_modules"])
def test_training_refuses_a_wrapped_head(setting):
    with pytest.raises(TrainingError, match="adapters merged"):
        head_parameters(view_target(adapted(setting).get_base_model()))
