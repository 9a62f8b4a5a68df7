"""Pictures of what a user owns, taken before a call and compared after it, down to hooks, ids and bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedConfig

_COUNTERS = {"calls", "contexts"}  # of a scripted drafter: they count, that is all


class Unchanged:
    """``with Unchanged(model, drafter, kwargs): ...`` fails if anything of them is another afterwards.

    Also looked at: hooks that torch keeps for all modules, the gradient mode, and, unless ``draws``, the random state.
    """

    def __init__(self, *things: Any, draws: bool = False) -> None:
        self._things, self._draws = things, draws

    def __enter__(self) -> Unchanged:
        self._before = self._picture()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.check()

    def check(self) -> None:
        after = self._picture()
        different = [name for name in {**self._before, **after} if self._before.get(name) != after.get(name)]
        assert not different, {name: (self._before.get(name), after.get(name)) for name in different[:5]}

    def _picture(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, thing in enumerate(self._things):
            _look(thing, f"{number}:{type(thing).__name__}", found)
        shared = vars(torch.nn.modules.module)
        found |= {
            name: _hooks(value) for name, value in shared.items() if name.startswith("_global") and "hook" in name
        }
        found["gradients"] = torch.is_grad_enabled()
        found["random state"] = None if self._draws else torch.get_rng_state().numpy().tobytes()
        return found


def _look(thing: Any, where: str, found: dict[str, Any]) -> None:
    """Write what ``thing`` is, leaf by leaf, into ``found``."""
    if isinstance(thing, nn.Module):
        for name, module in thing.named_modules():
            _look_at_module(module, f"{where}.{name}", found)
    elif isinstance(thing, Tensor):
        raw = thing.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        found[where] = (id(thing), thing.data_ptr(), thing.shape, thing.requires_grad, thing.grad is None, hash(raw))
    elif isinstance(thing, PreTrainedConfig | GenerationConfig):
        found[where] = id(thing)
        _look(vars(thing), where, found)
    elif isinstance(thing, dict):
        found[f"{where} keys"] = (id(thing), list(thing))
        for key, value in thing.items():
            _look(value, f"{where}[{key!r}]", found)
    elif isinstance(thing, list | tuple | set | frozenset):
        found[f"{where} items"] = (id(thing), len(thing))
        for place, value in enumerate(thing):
            _look(value, f"{where}[{place}]", found)
    else:
        plain = isinstance(thing, str | int | float | bool | bytes | None)
        found[where] = thing if plain else id(thing)


def _look_at_module(module: nn.Module, where: str, found: dict[str, Any]) -> None:
    for name, value in vars(module).items():
        if "hook" in name and isinstance(value, dict):
            found[f"{where}.{name}"] = _hooks(value)
        elif name == "_modules":
            found[f"{where}.{name}"] = [(child, id(each)) for child, each in value.items()]
        elif name not in _COUNTERS:
            _look(value, f"{where}.{name}", found)


def _hooks(value: Any) -> Any:
    return [(key, id(hook)) for key, hook in value.items()] if isinstance(value, dict) else value
