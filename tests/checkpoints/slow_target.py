"""A tiny target once as a model for the product and once as plain numbers for the slow reference, along one text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.drafter.heads.draft import Draft
from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.generation.candidates import DFlashCandidateGenerator
from dflash_hf.target.pairing import pair_view
from dflash_hf.target.taps import TapRecorder
from dflash_hf.target.view import TargetView, view_target
from tests.checkpoints.reference.drafter import Run, SlowTarget
from tests.checkpoints.tiny import write_tiny
from tests.checkpoints.tiny_dialects import Checkpoint
from tests.families import IMAGE_TEXT, SIZES, UNTIED, WINDOW, Family
from tests.tiny import VOCAB, build_target, tiny_target

TEXT = 26
# What these families do around embedding and head, as their configs in tests/families.py say.
_SCALES = {
    "llama": {},
    "glm4": {},
    "gemma2": {"embedding_scale": 32**0.5, "softcap": 5.0},
    "granite": {"factor": 3.0, "multiplier": 1 / 4.0},
    "muse": {"multiplier": 0.5, "softcap": 5.0},
}
_TOWER = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "patch_size": 4}
# Its embedding module norms the rows, which drafters do not want.
_MUSE = Family(
    "MuseGlimmerConfig",
    {
        "text_config": SIZES | WINDOW | {"final_logit_softcapping": 5.0, "output_multiplier": 0.5},
        "vision_config": _TOWER | {"pos_emb_height": 2, "pos_emb_width": 2},
        **UNTIED,
    },
    IMAGE_TEXT,
)


@dataclass(frozen=True)
class Pair:
    """A target, the same as numbers, and what it put out along its text."""

    model: PreTrainedModel
    view: TargetView
    slow: SlowTarget
    run: Run


@cache
def pair(kind: str) -> Pair:
    return make_pair(kind, lambda model: None)


def make_pair(kind: str, change: Callable[[PreTrainedModel], None]) -> Pair:
    """A target of the family ``kind``, after ``change``."""
    model = (build_target(_MUSE) if kind == "muse" else tiny_target(kind)).double()
    change(model)
    view = view_target(model)
    ids = torch.randint(2, VOCAB, (1, TEXT), generator=torch.Generator().manual_seed(11))
    rows, head = (part.weight.detach().double().numpy() for part in (view.embedding, view.head))
    return Pair(model, view, SlowTarget(rows, head, **_SCALES[kind]), listen(model, ids))


def listen(model: PreTrainedModel, ids: Tensor) -> Run:
    """What the target puts out along ``ids`` [1, S], by the host's own means."""
    raw: list[Tensor] = []
    handle = (
        view_target(model)
        .layers[-1]
        .register_forward_hook(lambda _module, _args, out: raw.append(out[0] if isinstance(out, tuple) else out))
    )
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    handle.remove()
    return Run(ids[0].tolist(), [each[0].numpy() for each in states], raw[0][0].numpy())


def load(checkpoint: Checkpoint, folder: Path) -> DFlashDrafter:
    write_tiny(folder, checkpoint.config, checkpoint.tensors)
    drafter = load_drafter(folder, dtype=torch.float64)
    assert drafter.provenance.dialect == checkpoint.dialect
    return drafter


def taps_of(drafter: DFlashDrafter, both: Pair) -> Tensor:
    """What the product hears of the text: taps [1, TEXT, L * width]."""
    pair_view(both.model, drafter)
    heard: list[Tensor] = []
    recorder = TapRecorder(both.view, drafter.config.target_layer_ids, drafter.config.last_tap)
    with torch.no_grad(), recorder.listen(lambda taps, _positions: heard.append(taps)):
        both.model(torch.tensor([both.run.ids]))
    return torch.cat(heard, dim=1)


def drafts(drafter: DFlashDrafter, both: Pair, taps: Tensor, anchors: list[int], *, cached: bool) -> list[Draft]:
    """Proposals after the tokens at ``anchors``: round after round, or each from one injection of all it may know."""
    engine, made = DFlashCandidateGenerator(drafter, both.view), []
    for before, anchor in zip([0, *anchors], anchors, strict=False):
        if not cached:
            engine, before = DFlashCandidateGenerator(drafter, both.view), 0
        engine.inject_run(taps[:, before:anchor], before)
        made.append(engine.propose(torch.tensor([[both.run.ids[anchor]]]), anchor, engine.most))
    return made
