"""transformers' ``MuseGlimmerAssistantModel`` and its DFlash lane against ours.

    pip install -e . "transformers>=5.24"
    python -m tests.parity.muse

Their class saves each drafter, their ``from_pretrained`` and our reader load it. Exit status 3 where a case differs.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from transformers import PreTrainedModel

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
_NEW = 40
_YARN = {"rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sliding": ("sss", {}),
    "mixed": ("sfs", {}),
    "full": ("fff", {}),
    "window of 5": ("sss", {"sliding_window": 5}),
    "YaRN": ("ssf", {"rope_parameters": _YARN}),
}


def compare() -> int:
    """Every case; prints the table and gives the exit status."""
    quiet()
    table = Table()
    for case, (kinds, changes) in CASES.items():
        for seed in SEEDS:
            target = tiny_target(seed)
            model, drafter = _both(kinds, changes, seed)
            for rounds, _ in rounds_of(target, seed):
                for mine, other in zip(ours(drafter, target, rounds), _theirs(model, target, rounds), strict=True):
                    table.add(f"Muse {case}", other, mine)
        _compare_text(table, f"Muse {case}: text", model, drafter, tiny_target(seed, winners=4))
    model, drafter = _both("sss", {}, 0)
    _compare_text(table, "Muse on a Muse Glimmer target: text", model, drafter, muse_target(0))
    return table.show()


def muse_target(seed: int) -> PreTrainedModel:
    """A tiny Muse Glimmer: its embedding has a norm of its own, its head a multiplier and a soft cap."""
    from transformers import MuseGlimmerConfig, MuseGlimmerForConditionalGeneration

    text = SHAPE | {
        "num_hidden_layers": 8, "sliding_window": 8, "final_logit_softcapping": 5.0, "output_multiplier": 0.5,
        "eos_token_id": None, "pad_token_id": 0, "bos_token_id": None,
    }  # fmt: skip
    vision = {
        "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "patch_size": 4,
        "pos_emb_height": 2, "pos_emb_width": 2,
    }  # fmt: skip
    config = MuseGlimmerConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)
    target = MuseGlimmerForConditionalGeneration(config).eval().float()
    randomise(target, seed)
    with torch.no_grad():
        target.lm_head.weight[4:] *= 0.02
    target.generation_config.eos_token_id = None
    target.generation_config.pad_token_id = 0
    return target


def _both(kinds: str, changes: dict[str, Any], seed: int) -> tuple[Any, Any]:
    """One drafter, saved by their class: as they read it, and as we do."""
    from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

    unknown = ("vocab_size", "tie_word_embeddings")
    fields = {name: value for name, value in SHAPE.items() if name not in unknown} | {
        "num_hidden_layers": len(kinds), "layer_types": layer_types(kinds), "sliding_window": WINDOW,
        "block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": TAPS,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    made = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**(fields | changes))).eval()
    randomise(made, 50 + seed)
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        return (
            MuseGlimmerAssistantModel.from_pretrained(folder, dtype=torch.float32).eval(),
            load_drafter(folder, dtype=torch.float32),
        )


@torch.no_grad()
def _theirs(model: Any, target: PreTrainedModel, rounds: list[Round]) -> list[Drafted]:
    """What ``DFlashTokenCandidateGenerator`` does in a round, with its cache."""
    from transformers.cache_utils import DFlashCache

    cache, drafts = DFlashCache(config=model.config), []
    cache.activate_past_recording()
    for each in rounds:
        cache.set_previous_accepted_tokens(each.taps.shape[1])
        if drafts:
            cache.crop(-BLOCK)
        block = torch.cat([each.anchor, torch.full((1, BLOCK - 1), MASK)], dim=1)
        hidden = model(
            noise_embeds=target.get_input_embeddings()(block),
            context_hidden_states=each.taps,
            position_ids=torch.arange(each.position - each.taps.shape[1], each.position + BLOCK)[None],
            attention_mask=torch.ones(1, each.position + BLOCK, dtype=torch.long),
            cache=cache,
        ).last_hidden_state
        logits = target.lm_head(hidden[:, 1:])
        drafts.append(Drafted(hidden, logits, logits.argmax(dim=-1)))
    return drafts


def _compare_text(table: Table, case: str, model: Any, drafter: Any, target: PreTrainedModel) -> None:
    """Their lane against our ``generate``: the text, and every round's drafts."""
    from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator as Lane

    ids, real, seen = prompt(1, 14), Lane.get_candidates, list[list[int]]()

    def watched(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        candidates, logits = real(self, input_ids, *args, **kwargs)
        if logits is not None:
            seen.append(candidates[0, input_ids.shape[1] :].tolist())
        return candidates, logits

    plain = plain_text(target, ids, _NEW)
    Lane.get_candidates = watched  # type: ignore[method-assign]
    try:
        options = {"max_new_tokens": _NEW, "do_sample": False}
        output = target.generate(ids, assistant_model=model, speculation_type="dflash", **options)
    finally:
        Lane.get_candidates = real  # type: ignore[method-assign]
    text = output[0, ids.shape[1] :].tolist()
    drafted, rounds = spoken(target, drafter, ids, _NEW)
    pairs = [
        (mine.drafted, block) for mine, block in zip([each for each in rounds if each.drafted], seen, strict=False)
    ]
    same = plain == text == drafted and all(mine == block[: len(mine)] for mine, block in pairs)
    table.add_text(case, same, len(pairs), f"{sum(each.accepted for each in rounds)} drafts kept")


if __name__ == "__main__":
    sys.exit(compare())
