"""z-lab's package ``dflash`` against ours: DFlash v1 and DFlash 2, round by round and through their generation loop.

    pip install -e . && pip install --no-deps dflash==0.1.0
    python -m tests.parity.zlab

Their classes save each drafter, their ``from_pretrained`` and our reader load it. Exit status 3 where a case differs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config

from dflash_hf.checkpoints.load import load_drafter
from tests.parity.subjects import (
    BLOCK,
    MASK,
    SHAPE,
    TAPS,
    WINDOW,
    Round,
    layer_types,
    ours,
    plain_text,
    prompt,
    quiet,
    randomise,
    rounds_of,
    spoken,
    tiny_target,
)  # fmt: skip
from tests.parity.table import Drafted, Table

__all__ = ["compare"]

SEEDS = (0, 1, 2)
_TEXT_SEED = 1
_NEW = 40
_SCALED = {"output_multiplier": 0.2, "final_logit_softcapping": 3.0, "input_embedding_scale": 1.7}
_SECOND = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 12, "selector_top_k": 6}
_YARN = {"rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0, "original_max_position_embeddings": 32}
# case: layers' kinds, top-level keys, keys of dflash_config
FIRST: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "v1 full": ("fff", {}, {}),
    "v1 full, is_causal true": ("fff", {"is_causal": True}, {}),
    "v1 sliding, default rule": ("sss", {}, {}),
    "v1 mixed, default rule": ("ssf", {}, {}),
    "v1 mixed, is_causal true": ("ssf", {"is_causal": True}, {}),
    "v1 mixed, is_causal false": ("sfs", {"is_causal": False}, {}),
    "v1 window of 5, causal": ("sss", {"sliding_window": 5}, {}),
    "v1 window of 5, is_causal false": ("sss", {"sliding_window": 5, "is_causal": False}, {}),
    "v1 attention bias": ("ssf", {"attention_bias": True}, {}),
    "v1 YaRN": ("fff", {"rope_parameters": _YARN}, {}),
    "v1 multiplier, soft cap, embedding scale": ("ssf", {}, _SCALED),
}
SECOND: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "v2 sliding, is_causal false": ("sss", {"is_causal": False}, _SECOND),
    "v2 multiplier and soft cap": ("sss", {"is_causal": False}, _SECOND | _SCALED),
    "v2 full, bias, three taps, groups of 8": (
        "fff", {"attention_bias": True}, _SECOND | {"conv_kernel_size": 3, "conv_group_size": 8}
    ),
    "v2 window of 5": ("sss", {"is_causal": False, "sliding_window": 5}, _SECOND),
}  # fmt: skip


def compare() -> int:
    """Every case; prints the table and gives the exit status."""
    import dflash.model as theirs

    quiet()
    table = Table("dflash")
    for cases, model_class in ((FIRST, theirs.DFlashDraftModel), (SECOND, theirs.DFlash2DraftModel)):
        for case, (kinds, top, nested) in cases.items():
            for seed in SEEDS:
                target = tiny_target(seed)
                model, drafter = _both(model_class, kinds, top, nested, seed)
                for rounds, _ in rounds_of(target, seed):
                    for mine, other in zip(ours(drafter, target, rounds), _theirs(model, target, rounds), strict=True):
                        table.add(case, other, mine)
                if seed == _TEXT_SEED:
                    _compare_text(table, case, model, drafter, seed)
    return table.show()


def _both(model_class: Any, kinds: str, top: dict[str, Any], nested: dict[str, Any], seed: int) -> tuple[Any, Any]:
    """One drafter, saved by their class: as they read it, and as we do."""
    fields = SHAPE | {"num_hidden_layers": len(kinds), "layer_types": layer_types(kinds), "num_target_layers": 8}
    if "s" in kinds:
        fields |= {"sliding_window": WINDOW, "use_sliding_window": True}
    drafting = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": TAPS} | nested
    made = model_class(Qwen3Config(**(fields | top), dflash_config=drafting)).eval()
    randomise(made, 50 + seed)
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        _as_published(Path(folder) / "model.safetensors")
        return (
            model_class.from_pretrained(folder, dtype=torch.float32).eval(),
            load_drafter(folder, dtype=torch.float32),
        )


def _as_published(file: Path) -> None:
    """Codebooks lie in the published files without ``.weight``; their class adds it on loading, and keeps it."""
    from safetensors.torch import load_file, save_file

    save_file({name.replace("codebook.weight", "codebook"): part for name, part in load_file(file).items()}, file,
              {"format": "pt"})  # fmt: skip


@torch.no_grad()
def _theirs(model: Any, target: PreTrainedModel, rounds: list[Round]) -> list[Drafted]:
    """What their loop does in a round, with its cache: forward, crop, propose."""
    import dflash.model as package

    cache, drafts = package._make_cache(model.config), []
    scale = float(package._draft_value(model.config, "input_embedding_scale", 1.0))
    for each in rounds:
        block = torch.cat([each.anchor, torch.full((1, BLOCK - 1), model.mask_token_id)], dim=1)
        hidden = model(
            target_hidden=each.taps,
            noise_embedding=package._raw_input_embeddings(target, block, scale),
            position_ids=torch.arange(each.position - each.taps.shape[1], each.position + BLOCK)[None],
            past_key_values=cache,
            use_cache=True,
        )
        package._crop_to(cache, each.position)
        drafts.append(_proposed(model, target.lm_head, hidden, each.anchor))
    return drafts


def _proposed(model: Any, head: Any, hidden: Tensor, anchor: Tensor) -> Drafted:
    import dflash.model as package

    logits = model.compute_logits(hidden[:, 1:], head)
    if not isinstance(model, package.DFlash2DraftModel):
        return Drafted(hidden, logits, logits.argmax(dim=-1))
    tokens, candidates, _ = model.propose(hidden[:, 1:], anchor[:, 0], head, 0.0)
    scores = _scores(model, hidden[:, 1:], logits, anchor, tokens, candidates)
    return Drafted(hidden, scores, tokens, candidates, logits)


def _scores(model: Any, hidden: Tensor, logits: Tensor, anchor: Tensor, tokens: Tensor, candidates: Tensor) -> Tensor:
    """The scores of their walk, which it does not hand out: what it compares at each slot, given its own path."""
    chooser = model.candidate_selector
    before = chooser.predecessor_codebook(torch.cat([anchor, tokens[:, :-1]], dim=1))
    reading = before * chooser.hidden_projection(hidden)
    return logits.gather(-1, candidates) + torch.einsum(
        "bjr,bjkr->bjk", reading, chooser.successor_codebook(candidates)
    )


def _compare_text(table: Table, case: str, model: Any, drafter: Any, seed: int) -> None:
    """Their ``spec_generate`` against our ``generate``: the text, and the drafts wherever their block is whole."""
    target, ids = tiny_target(seed, winners=4), prompt(seed, 14)
    plain = plain_text(target, ids, _NEW)
    for stop in (None, plain[-5]):
        expected = plain if stop is None else plain[: plain.index(stop) + 1]
        blocks: list[list[int]] = []
        handle = target.register_forward_pre_hook(lambda _module, args, seen=blocks: seen.append(args[0][0].tolist()))
        text = model.spec_generate(target, ids, _NEW, None if stop is None else [stop])[0, ids.shape[1] :].tolist()
        handle.remove()
        drafted, rounds = spoken(tiny_target(seed, winners=4), drafter, ids, _NEW, stop)
        pairs = [(mine.drafted, block[1:]) for mine, block in zip(rounds, blocks[1:], strict=False)]
        whole = [(mine, block) for mine, block in pairs if len(block) == BLOCK - 1 and mine]
        same = expected == drafted == text and all(mine == block[: len(mine)] for mine, block in whole)
        kept = sum(each.accepted for each in rounds)
        table.add_text(f"{case}: text", same, len(whole), f"{kept} drafts kept")


if __name__ == "__main__":
    sys.exit(compare())
