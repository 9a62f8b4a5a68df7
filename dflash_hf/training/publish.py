"""From a finished run to a drafter folder: weights, card, and a provenance file that says how it was made."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch
import transformers

from dflash_hf.training.documents import DESCRIPTION
from dflash_hf.training.evaluate import evaluate
from dflash_hf.training.run import Trainer

__all__ = ["publish"]

PROVENANCE = "provenance.json"


def publish(trainer: Trainer, folder: str | Path, *, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """Write the trainer's drafter, cast to ``dtype``, into ``folder`` and return its provenance.

    The evaluation in it is of the cast weights, on the documents the run never trained on.
    """
    folder, recipe = Path(folder), trainer.recipe
    drafter = trainer.drafter.to(dtype).float().eval()
    result = evaluate(drafter, trainer.view, trainer.documents.held_out(recipe.evaluation_documents))
    drafter.to(dtype).save_pretrained(folder)
    provenance = {
        "schema": "dflash-hf/provenance/1",
        "target": drafter.config.target_name,
        "recipe": {key: value for key, value in recipe.to_dict().items() if key not in ("documents", "output")},
        "steps_done": trainer.step,
        "epochs_done": round(trainer.epoch + trainer.position / max(1, len(trainer.documents.training)), 2),
        "answers": {
            **json.loads((Path(recipe.documents) / DESCRIPTION).read_text(encoding="utf-8")),
            "training_documents": len(trainer.documents.training),
            "held_out_documents": len(trainer.documents.evaluation),
        },
        "held_out": {
            "tau_simulated": round(result.tau, 4),
            "rounds": result.rounds,
            "right_by_position": [round(share, 4) for share in result.by_position],
        },
        "parameters": sum(parameter.numel() for parameter in drafter.parameters()),
        "weights_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__, "on": platform.machine()},
    }
    (folder / PROVENANCE).write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")
    return provenance
