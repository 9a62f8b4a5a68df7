"""One process or several: who this one is, and what all of them must agree on.

accelerate does the work: under ``accelerate launch`` or ``torchrun`` the processes find each other (gloo on CPUs, nccl
on GPUs) and gradients are averaged; alone, nothing happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch

from dflash_hf.errors import TrainingError

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")

__all__ = ["join", "same_for_all", "share_of", "total"]


def join(precision: str, per_step: int) -> Accelerator:
    """This process among its siblings.

    Raises:
        TrainingError: the launch and the recipe contradict each other.
    """
    from accelerate import Accelerator, DistributedType

    accelerator = Accelerator(cpu=not torch.accelerator.is_available())  # else it looks for siblings on GPUs alone
    launched = accelerator.mixed_precision
    if launched not in ("no", "bf16" if precision == "bfloat16" else "no"):
        raise TrainingError(
            f"accelerate was launched with mixed precision {launched}, the recipe says precision: {precision}; "
            "launch with --mixed_precision no, the recipe decides"
        )
    if per_step % accelerator.num_processes:
        raise TrainingError(
            f"documents_per_step={per_step} cannot be dealt out evenly to {accelerator.num_processes} processes; "
            "choose a multiple"
        )
    if accelerator.distributed_type not in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
        raise TrainingError(
            f"launched as {accelerator.distributed_type.value}: a drafter is small: every process holds it whole, and "
            "only gradients are exchanged; launch with --multi_gpu, or with torchrun"
        )
    return accelerator


def share_of(items: list[T], accelerator: Accelerator) -> list[T]:
    """Every n-th item, from this process's own number on."""
    return items[accelerator.process_index :: accelerator.num_processes]


def same_for_all(accelerator: Accelerator, value: T) -> T:
    """The main process's value: what each measured for itself, all must decide alike."""
    from accelerate.utils import broadcast_object_list

    return value if accelerator.num_processes == 1 else broadcast_object_list([value])[0]


def total(accelerator: Accelerator, *values: float) -> list[float]:
    """The sums of the values over all processes."""
    if accelerator.num_processes == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
    return accelerator.reduce(tensor, reduction="sum").tolist()
