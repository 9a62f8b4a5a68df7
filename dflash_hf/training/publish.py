"""From a finished run to a drafter folder: weights, card, and a provenance file that says how it was made."""

from __future__ import annotations

import copy
import hashlib
import json
import platform
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from dflash_hf import __version__
from dflash_hf.checkpoints.card import card_for
from dflash_hf.checkpoints.save import write_drafter
from dflash_hf.checkpoints.write import write_text
from dflash_hf.errors import TrainingError
from dflash_hf.target.view import public_name
from dflash_hf.training.card import PROVENANCE, training_section
from dflash_hf.training.documents import prompts_fingerprint
from dflash_hf.training.evaluate import evaluate
from dflash_hf.training.gather import thinking_mode
from dflash_hf.training.run import Trainer
from dflash_hf.training.trained_parts import layout_for

__all__ = ["publish"]


def publish(
    trainer: Trainer,
    folder: str | Path,
    *,
    answers: list[dict[str, Any]],
    command: str = "",
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """Write the trainer's drafter, cast to ``dtype``, into ``folder`` and return its provenance.

    The evaluation in it is of the cast weights. Only the main process may call this; it evaluates alone.

    Args:
        trainer: a run, finished or not: the provenance says how far it is.
        folder: weights and card that are already there are replaced, the card once the new weights are in place. The
            files are in z-lab's layout, or where that has no words for the drafter, in speculators'.
        answers: the descriptions of the answers folders (``answers.AnswerFolder.description``).
        command: what a person types to do it again.
        dtype: of the weights on disk.

    Raises:
        TrainingError: the folder cannot be written; the run's state is kept, and so is what lay there before until new
            weights are in place.
    """
    folder = Path(folder)
    drafter = copy.deepcopy(trainer.drafter).to(dtype).float()
    results = {
        name: evaluate(drafter, trainer.view, documents, trainer.features, trainer.recipe.blocks_per_row).row()
        for name, documents in trainer.evaluated().items()
    }
    provenance = _provenance(trainer, answers, results, command)
    layout = layout_for(drafter)
    text = card_for(drafter.config, None, layout=layout) + training_section(provenance)
    try:
        write_drafter(drafter.to(dtype), folder, to=layout, card=text)
        provenance["weights_sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        write_text(folder / PROVENANCE, json.dumps(provenance, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"the drafter could not be written to {folder} ({error}); the run's state is kept"
        ) from error
    return provenance


def _provenance(
    trainer: Trainer, answers: list[dict[str, Any]], results: dict[str, Any], command: str
) -> dict[str, Any]:
    config, recipe, corpus = trainer.drafter.config, trainer.recipe, trainer.corpus
    return {
        "schema": "dflash-hf/provenance/2",
        "target": config.target_name,
        "layers": config.num_hidden_layers,
        "block_size": config.block_size,
        "head": dict(config.head),
        "draft_vocab_size": config.draft_vocab_size,
        "target_layer_ids": list(config.target_layer_ids),
        "thinking": thinking_mode(answers),
        "parameters": sum(parameter.numel() for parameter in trainer.drafter.parameters()),
        "recipe": _without_folders(recipe.model_dump(mode="json")),
        "command": command,
        **_started_from(trainer),
        "steps": trainer.step,
        "hours": round(trainer.seconds / 3600, 2),
        "answer_tokens_seen": trainer.tokens,
        "answers": {
            "documents": len(corpus.training),
            "tokens": corpus.answer_tokens,
            "sources": dict(Counter(document.source for document in corpus.training).most_common()),
            "left_out": dict(corpus.left_out),
            "made": answers,
        },
        "evaluation": {
            name: {**results[name], "prompts_sha256": prompts_fingerprint(documents)}
            for name, documents in trainer.evaluated().items()
        },
        "made_with": {
            "dflash_hf": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "on": f"{trainer.accelerator.num_processes} x {trainer.accelerator.device.type}, {platform.machine()}",
        },
    }


def _started_from(trainer: Trainer) -> dict[str, Any]:
    if (origin := trainer.origin) is None:
        return {}
    return {"started_from": {"name": origin.name, "prompts_not_compared": list(origin.uncompared)}}


def _without_folders(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe as a stranger can read it: of this machine's folders only their last part."""
    names = {key: public_name(recipe[key]) for key in ("output", "feature_cache", "start_from")}
    evaluation = {name: Path(folder).name for name, folder in recipe["evaluation"].items()}
    return {**recipe, **names, "evaluation": evaluation, "answers": [Path(folder).name for folder in recipe["answers"]]}
