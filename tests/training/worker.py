"""One process of a run of several: ``torchrun ... -m tests.training.worker FOLDER JSON``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from dflash_hf.training.processes import same_for_all
from tests.training.world import World

if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer = World(answers=12, new_tokens=16).trainer(Path(sys.argv[1]), **json.loads(sys.argv[2]))
    assert same_for_all(trainer.accelerator, trainer.accelerator.process_index) == 0
    trainer.train()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
