"""The drafter's embeddings and logits carry the factors the target puts around its embedding and head.

The truth is the target itself: what its first layer gets, and the logits it returns.
"""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from dflash_hf.drafter.heads.draft import scaled_logits
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.generation.attach import generate
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.generation.record import last_trace
from dflash_hf.options import DFlashOptions
from dflash_hf.target.view import view_target
from tests.families import FAMILIES, GRANITE, IDS, IMAGE_TEXT, MOE, NO_IMAGES, SIZES, TOWER, UNTIED, Family
from tests.scripted import tiny_config
from tests.tiny import build_target, prompt

# Families of which only the factors matter: names that mean another thing elsewhere, wrappers with heads of their own.
SCALED = {
    "cohere": Family("CohereConfig", SIZES | {"logit_scale": 0.25}),
    "granitemoe": Family("GraniteMoeConfig", SIZES | MOE | GRANITE),
    "hyperclovax": Family("HyperCLOVAXConfig", SIZES | GRANITE),
    "nanochat": Family("NanoChatConfig", SIZES | {"final_logit_softcapping": 4.0}),
    "vaultgemma": Family("VaultGemmaConfig", SIZES | {"final_logit_softcapping": 4.0}),
    "afmoe": Family("AfmoeConfig", SIZES | MOE | {"mup_enabled": True, "num_dense_layers": 1}),
    "ctrl": Family("CTRLConfig", {"vocab_size": 96, "n_embd": 32, "dff": 48, "n_layer": 4, "n_head": 4, **IDS}),
    "gemma3_vlm_capped": Family(
        "Gemma3Config",
        {"text_config": SIZES | {"final_logit_softcapping": 4.0}, "vision_config": TOWER, **UNTIED},
        IMAGE_TEXT,
    ),
    "cohere2_vision": Family(
        "Cohere2VisionConfig",
        {
            "text_config": SIZES | {"model_type": "cohere2", "logit_scale": 0.25},
            "vision_config": TOWER | {"model_type": "siglip_vision_model"},
            **NO_IMAGES,
            **UNTIED,
        },
        IMAGE_TEXT,
    ),
}
ALL = FAMILIES | SCALED
MORE_THAN_TOKENS = {"gpt2", "bloom", "ctrl", "nanochat"}  # their first layer gets positions too, or normed embeddings
EXAMPLES = ("granite", "cohere2", "gemma2")


def target(kind: str) -> PreTrainedModel:
    return build_target(ALL[kind])


def engine_for(model: PreTrainedModel, **changes: object) -> DFlashCandidateGenerator:
    torch.manual_seed(5)
    drafter = DFlashDrafter(tiny_config(model, **changes)).eval()
    return DFlashCandidateGenerator(drafter, view_target(model))


@pytest.mark.parametrize("kind", sorted(ALL.keys() - MORE_THAN_TOKENS))
@torch.no_grad()
def test_embed_gives_what_the_first_layer_gets(kind):
    model, seen = target(kind), []
    view = view_target(model)
    handle = view.layers[0].register_forward_pre_hook(
        lambda _module, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    model(prompt())
    handle.remove()
    torch.testing.assert_close(view.embed(prompt()), seen[0])


@pytest.mark.parametrize("kind", sorted(ALL))
@torch.no_grad()
def test_the_targets_logits_are_its_heads_output_with_multiplier_and_soft_cap(kind):
    model = target(kind)
    view = view_target(model)
    output = model(prompt(), output_hidden_states=True)
    ours = scaled_logits(view.project(output.hidden_states[-1]), view.logit_multiplier, view.logit_softcap)
    torch.testing.assert_close(ours, output.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("extra", [1.0, 2.5])
@pytest.mark.parametrize("source", ["target", "target_rows"])
def test_propose_embeds_as_the_dialect_says(kind, extra, source):
    model = target(kind)
    engine, seen = engine_for(model, embedding=source, embedding_scale=extra), []
    engine.drafter.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    engine.propose(torch.tensor([[9]]), 0, 7)
    factor = {"granite": 3.0, "cohere2": 1.0, "gemma2": 32**0.5}[kind] if source == "target" else 1.0
    rows = model.get_input_embeddings().weight[[9, *[1] * 7]]  # the anchor, then masks
    torch.testing.assert_close(seen[0], (rows * factor * extra)[None])


@pytest.mark.parametrize("kind", EXAMPLES)
@torch.no_grad()
def test_a_drafter_with_the_targets_hidden_states_has_the_targets_distribution(kind):
    model = target(kind)
    output = model(prompt(12), output_hidden_states=True)
    logits = view_target(model).project(output.hidden_states[-1])
    q = torch.softmax(engine_for(model)._scale(logits), dim=-1)
    p = torch.softmax(output.logits, dim=-1)
    accepted, unscaled = (torch.minimum(p, each).sum(-1).mean() for each in (q, torch.softmax(logits, dim=-1)))
    assert accepted > 0.9999, "the chance that the ratio rule accepts"
    assert unscaled < 0.95, "without the factors it would be less, or this shows nothing"


@pytest.mark.parametrize(
    ("stated", "multiplier", "cap"),
    [
        ({}, 0.25, None),
        ({"output_multiplier": 0.5}, 0.5, None),
        ({"final_logit_softcapping": 2.0}, 0.25, 2.0),
        ({"output_multiplier": 0.5, "final_logit_softcapping": 2.0}, 0.5, 2.0),
    ],
    ids=["nothing", "multiplier", "cap", "both"],
)
def test_what_the_drafters_config_states_stands_in_place_of_the_targets(stated, multiplier, cap):
    logits = torch.linspace(-20, 20, 96)[None, None]
    scaled = logits * multiplier
    expected = scaled if cap is None else cap * torch.tanh(scaled / cap)
    ours = engine_for(target("granite"), **stated)._scale(logits)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("kind", "multiplier", "cap"), [("granite", 0.25, None), ("cohere2", 0.25, None), ("gemma2", 1.0, 5.0)]
)
def test_draft_q_in_the_trace_is_the_drafters_own_probability(kind, multiplier, cap):
    model, hidden = target(kind), []
    drafter = engine_for(model).drafter
    drafter.register_forward_hook(lambda _module, _args, output: hidden.append(output.last_hidden_state))
    options = DFlashOptions(trace_probabilities=True)
    generate(model, prompt(), assistant=drafter, dflash=options, max_new_tokens=12, do_sample=False)
    rounds = [record for record in last_trace().rounds if record.drafted]
    assert len(rounds) == len(hidden) > 2
    head = model.get_output_embeddings().weight.detach()
    for record, states in zip(rounds, hidden, strict=True):
        for place, (token, q) in enumerate(zip(record.drafted, record.draft_q, strict=True)):
            logits = multiplier * (head @ states[0, 1 + place])
            logits = logits if cap is None else cap * torch.tanh(logits / cap)
            assert q == pytest.approx(float(logits.softmax(-1)[token]), abs=1e-5)
