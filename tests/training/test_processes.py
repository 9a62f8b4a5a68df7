"""Several processes do what one does with the same global batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dflash_hf.errors import TrainingError
from dflash_hf.training import checkpoint, processes
from tests.training.world import World

ROOT = Path(__file__).parents[2]
OPTIONS = {"steps": 4, "evaluate_every": 4, "head_sample": 20, "feature_noise": 0.05, "evaluation_documents": 3}


def launch(folder: Path, count: int, options: dict[str, object]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [*command, "-m", "tests.training.worker", str(folder), json.dumps(options)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def entries(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    """The loss curve, the evaluation and the weights, with documents of unlike length on either side."""
    done = launch(tmp_path / "two", 2, OPTIONS)
    assert done.returncode == 0, done.stderr[-3000:]
    World(answers=12, new_tokens=16).trainer(tmp_path / "one", **OPTIONS).train()
    two, one = entries(tmp_path / "two"), entries(tmp_path / "one")
    assert len(one) == len(two) == 5 and one[-1]["rounds"] > 0
    for mine, theirs in zip(two, one, strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            assert mine[key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4)), key
    weights = checkpoint.drafter_of_run(tmp_path / "one").state_dict()
    for name, weight in checkpoint.drafter_of_run(tmp_path / "two").state_dict().items():
        torch.testing.assert_close(weight, weights[name], atol=2e-5, rtol=1e-3)


@pytest.mark.slow
def test_a_batch_that_cannot_be_dealt_out_is_refused_by_every_process(tmp_path):
    done = launch(tmp_path, 2, {**OPTIONS, "documents_per_step": 3})
    assert done.returncode != 0
    assert "documents_per_step=3 cannot be dealt out evenly to 2 processes" in done.stderr


@pytest.mark.parametrize(
    ("launched", "message"),
    [
        ({"mixed_precision": "fp16"}, "mixed precision fp16, the recipe says precision: float32"),
        ({"distributed_type": "FSDP"}, "launched as FSDP"),
    ],
)
def test_a_launch_that_contradicts_the_recipe_is_refused(monkeypatch, launched, message):
    import accelerate

    kind = accelerate.DistributedType(launched.get("distributed_type", "NO"))
    found = SimpleNamespace(**{"mixed_precision": "no", "num_processes": 1, **launched, "distributed_type": kind})
    monkeypatch.setattr(accelerate, "Accelerator", lambda cpu: found)
    with pytest.raises(TrainingError, match=message):
        processes.join("float32", 4)
