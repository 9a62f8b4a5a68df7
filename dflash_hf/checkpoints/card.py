"""The model card: what a drafter's README.md says of itself, read and written.

In: a folder, a drafter. Out: README.md with our metadata; text that is already there is never touched.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import CardData, ModelCard, ModelCardData
from yaml import YAMLError

from dflash_hf.config import DFlashConfig
from dflash_hf.errors import CheckpointError

__all__ = ["card_for", "read_base_model"]

_TAGS = ("dflash", "speculative-decoding", "draft-model")


def read_base_model(folder: Path) -> str | None:
    """The target a card names as ``base_model``; None without a card, without a name, or with several."""
    path = folder / "README.md"
    if not path.is_file():
        return None
    named = _load(path.read_text(encoding="utf-8"), path).data.get("base_model")
    if isinstance(named, list) and len(named) == 1:
        named = named[0]
    return named if isinstance(named, str) else None


def card_for(config: DFlashConfig, existing: str | None, *, repo_id: str | None = None, layout: str = "zlab") -> str:
    """README.md's text: ``existing`` with our metadata brought up to date, or a new card.

    Args:
        config: the drafter's description; ``target_name`` becomes ``base_model``.
        existing: text of the card that is already there, if any.
        repo_id: how the snippet names the drafter; None leaves a placeholder to fill in.
        layout: which library the files are for, ``"zlab"``, ``"host"`` or ``"speculators"``.
    """
    if existing is None:
        data = ModelCardData()
        _update(data, config, layout)
        return str(ModelCard(f"---\n{data.to_yaml()}\n---\n{_text(config, repo_id, layout)}").content)
    card = _load(existing, Path("README.md"))
    _update(card.data, config, layout)
    return str(card.content)


def _load(text: str, path: Path) -> ModelCard:
    try:
        return ModelCard(text, ignore_metadata_errors=True)
    except (ValueError, YAMLError) as error:
        raise CheckpointError(
            f"{path}: the metadata block at its top is not valid ({error}); mend or remove it."
        ) from error


def _update(data: CardData, config: DFlashConfig, layout: str) -> None:
    tags = data.get("tags") or []
    data["tags"] = [*tags, *(tag for tag in _TAGS if tag not in tags)]
    data["library_name"] = "transformers" if layout == "host" else "dflash_hf"
    data["pipeline_tag"] = "text-generation"
    if config.target_name is not None:
        data["base_model"] = config.target_name


def _text(config: DFlashConfig, repo_id: str | None, layout: str) -> str:
    target = config.target_name or "<the target's id>"
    drafter = repo_id or "<this drafter's id or folder>"
    snippet = _HOST_SNIPPET if layout == "host" else _SNIPPET
    files = _FILES[layout]
    return f"""
# DFlash drafter{f" for {config.target_name}" if config.target_name else ""}

Proposes {config.num_draft_tokens} tokens at once for its target to verify (DFlash, arXiv 2602.06036). The text is the
target's own; only the number of its steps changes. {config.num_hidden_layers} layers of width {config.hidden_size},
reading target layers {", ".join(map(str, config.target_layer_ids))}. The files are in the layout of {files}.

```python
{snippet.format(target=target, drafter=drafter)}
inputs = tokenizer("The capital of France is", return_tensors="pt")
output = model.generate(**inputs, {_HOW[layout]}, max_new_tokens=64)
print(tokenizer.decode(output[0], skip_special_tokens=True))
```
"""


_FILES = {
    "zlab": "z-lab's checkpoints",
    "host": "transformers' Muse Glimmer assistant",
    "speculators": "vllm-project/speculators",
}
_HOW = {
    "zlab": "assistant=drafter",
    "speculators": "assistant=drafter",
    "host": 'assistant_model=drafter, speculation_type="dflash"',
}
_SNIPPET = """import dflash_hf
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{target}")
model = dflash_hf.attach(AutoModelForCausalLM.from_pretrained("{target}"))
drafter = dflash_hf.DFlashDrafter.from_pretrained("{drafter}", target=model)
"""
_HOST_SNIPPET = """from transformers import AutoModelForCausalLM, AutoTokenizer, MuseGlimmerAssistantModel

tokenizer = AutoTokenizer.from_pretrained("{target}")
model = AutoModelForCausalLM.from_pretrained("{target}")
drafter = MuseGlimmerAssistantModel.from_pretrained("{drafter}", dtype=model.dtype)  # the two must agree
"""
