"""Importing the package is cheap and leaves transformers as it was. Each question needs an interpreter of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from importlib import import_module

import pytest

import dflash_hf

HEAVY = {"torch", "transformers", "huggingface_hub", "safetensors", "numpy", "gguf", "accelerate"}

SNAPSHOT = """
    import json, sys
    import transformers
    from transformers import AttentionInterface, AttentionMaskInterface, cache_utils, modeling_utils, masking_utils
    from transformers.generation import candidate_generator, utils as generation_utils
    from transformers.models.auto import auto_factory, configuration_auto, modeling_auto, tokenization_auto
    from transformers.models.qwen3 import modeling_qwen3

    PLACES = {
        "GenerationMixin": generation_utils.GenerationMixin,
        "PreTrainedModel": modeling_utils.PreTrainedModel,
        "PreTrainedConfig": transformers.PreTrainedConfig,
        "GenerationConfig": transformers.GenerationConfig,
        "Cache": cache_utils.Cache,
        "DynamicCache": transformers.DynamicCache,
        "CandidateGenerator": candidate_generator.CandidateGenerator,
        "AutoConfig": transformers.AutoConfig,
        "AutoModel": transformers.AutoModel,
        "AutoModelForCausalLM": transformers.AutoModelForCausalLM,
        "Qwen3RMSNorm": modeling_qwen3.Qwen3RMSNorm,
        "Qwen3ForCausalLM": modeling_qwen3.Qwen3ForCausalLM,
        "generation.utils": generation_utils,
        "candidate_generator": candidate_generator,
        "cache_utils": cache_utils,
        "modeling_utils": modeling_utils,
        "masking_utils": masking_utils,
        "modeling_qwen3": modeling_qwen3,
        "AttentionInterface": AttentionInterface._global_mapping,
        "AttentionMaskInterface": AttentionMaskInterface._global_mapping,
        "CONFIG_MAPPING": configuration_auto.CONFIG_MAPPING._mapping,
        "CONFIG_MAPPING extra": configuration_auto.CONFIG_MAPPING._extra_content,
        "MODEL_MAPPING extra": modeling_auto.MODEL_MAPPING._extra_content,
        "MODEL_FOR_CAUSAL_LM_MAPPING extra": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING._extra_content,
        "TOKENIZER_MAPPING extra": tokenization_auto.TOKENIZER_MAPPING._extra_content,
    }

    def snapshot():
        return {place: dict(held if isinstance(held, dict) else vars(held)) for place, held in PLACES.items()}

    def changes(before, after):
        return sorted(
            f"{place}.{name}"
            for place in before
            for name in {*before[place], *after[place]}
            if before[place].get(name, sys) is not after[place].get(name, sys)
        )
"""


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", ["dflash_hf", "dflash_hf.cli", "dflash_hf.__main__", "dflash_hf.trace"])
def test_import_loads_nothing_heavy(module: str) -> None:
    loaded = json.loads(run_python(f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"))
    assert module in loaded
    assert HEAVY.isdisjoint(loaded)


@pytest.fixture(scope="module")
def changed() -> dict[str, list[str]]:
    """What differs in transformers after the whole package was imported, and after planted faults on top of that."""
    code = """
    before = snapshot()
    import importlib, pkgutil
    import dflash_hf
    for name in dflash_hf.__all__:
        getattr(dflash_hf, name)
    for module in pkgutil.walk_packages(dflash_hf.__path__, "dflash_hf."):
        importlib.import_module(module.name)
    by_us = changes(before, snapshot())

    generation_utils.GenerationMixin.generate = lambda self: None
    modeling_qwen3.planted = 1
    AttentionInterface.register("planted", lambda *args: None)
    class Planted(transformers.PreTrainedConfig):
        model_type = "planted"
    transformers.AutoConfig.register("planted", Planted)
    print(json.dumps({"by us": by_us, "planted": changes(before, snapshot())}))
    """
    return json.loads(run_python(textwrap.dedent(SNAPSHOT) + textwrap.dedent(code)))


def test_import_changes_nothing_in_transformers(changed: dict[str, list[str]]) -> None:
    assert changed["by us"] == []


def test_changes_sees_a_patch_and_a_registration(changed: dict[str, list[str]]) -> None:
    expected = {"GenerationMixin.generate", "modeling_qwen3.planted", "AttentionInterface.planted"}
    assert expected | {"CONFIG_MAPPING extra.planted"} <= set(changed["planted"])


@pytest.mark.parametrize("name", dflash_hf.__all__)
def test_public_name_resolves_to_its_home(name: str) -> None:
    value = getattr(dflash_hf, name)
    if name == "__version__":
        assert isinstance(value, str)
        return
    home = import_module(value.__module__)
    assert home.__name__.startswith("dflash_hf.")
    assert getattr(home, name) is value
    assert name in home.__all__, f"{home.__name__}.__all__ lacks {name}"


def test_dir_lists_every_public_name() -> None:
    assert set(dflash_hf.__all__) <= set(dir(dflash_hf))
    assert set(dflash_hf.__all__) == {*dflash_hf._HOME_OF, "__version__"}


def test_getattr_refuses_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'atach'"):
        dflash_hf.atach  # noqa: B018 - reading the attribute is the test


def test_star_import_gives_the_public_names() -> None:
    shared: dict[str, object] = {}
    exec("from dflash_hf import *", shared)
    assert set(dflash_hf.__all__) <= set(shared)
