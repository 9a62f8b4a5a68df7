"""The package ``speculators`` against ours: dflash, dspark (vanilla, gated, rnn) and dflash2.

    pip install -e . && pip install speculators==0.9.0      (brings transformers <= 5.19)
    python -m tests.parity.vllm_speculators

It has no inference loop. A round is their training forward over one anchor with all taps before it, and their heads
walked greedily. Their ``save_pretrained`` writes each drafter, our reader loads it; the embedding and a head of full
size are the target's, and not saved. Exit status 3 where a case differs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config

from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.errors import DFlashError
from tests.parity.subjects import (
    BLOCK,
    MASK,
    SHAPE,
    TAPS,
    VOCAB,
    WIDTH,
    WINDOW,
    Round,
    layer_types,
    ours,
    quiet,
    randomise,
    rounds_of,
    tiny_target,
)  # fmt: skip
from tests.parity.table import Drafted, Table

__all__ = ["compare"]

SEEDS = (0, 1, 2)
_REDUCED = 96
_SECOND = {"selector_rank": 12, "selector_top_k": 6}
# case: layers' kinds, rows of the head, keys
CASES: dict[str, dict[str, tuple[str, int, dict[str, Any]]]] = {
    "dflash": {
        "full, d2t": ("fff", _REDUCED, {}),
        "sliding, d2t": ("sss", _REDUCED, {}),
        "mixed, not causal, d2t": ("ssf", _REDUCED, {"sliding_window_non_causal": True}),
        "sliding, d2t, from the anchor": ("ssf", _REDUCED, {"sample_from_anchor": True}),
        "full vocabulary": ("ssf", VOCAB, {}),
        "full vocabulary, from the anchor": ("fff", VOCAB, {"sample_from_anchor": True}),
    },
    "dspark": {
        f"{kind}, {rows} rows{'' if anchor else ', not from the anchor'}": (
            "ssf", rows, {"markov_head_type": kind, "markov_rank": 16, "sample_from_anchor": anchor}
        )
        for kind in ("vanilla", "gated", "rnn")
        for rows in (_REDUCED, VOCAB)
        for anchor in (True, False)
    } | {
        "rank 0": ("ssf", _REDUCED, {"markov_rank": 0, "confidence_head_with_markov": False}),
        "no confidence head": ("sss", _REDUCED, {"markov_rank": 8, "enable_confidence_head": False}),
    },
    "dflash2": {
        "sliding": ("sss", VOCAB, _SECOND),
        "sliding, causal": ("sss", VOCAB, _SECOND | {"sliding_window_non_causal": False}),
        "mixed, from the anchor": ("ssf", VOCAB, _SECOND | {"sample_from_anchor": True}),
        "three taps, groups of 8": ("sss", VOCAB, _SECOND | {"conv_kernel_size": 3, "conv_group_size": 8}),
    },
}  # fmt: skip


def compare() -> int:
    """Every case; prints the table and gives the exit status."""
    quiet()
    table = Table("speculators")
    for kind, cases in CASES.items():
        for case, (layers, rows, keys) in cases.items():
            for seed in SEEDS:
                try:
                    _compare_rounds(table, f"{kind} {case}", seed, kind, layers, rows, keys)
                except DFlashError as error:
                    table.add_refusal(f"{kind} {case}", error)
    return table.show()


def _compare_rounds(
    table: Table, case: str, seed: int, kind: str, layers: str, rows: int, keys: dict[str, Any]
) -> None:
    target = tiny_target(seed)
    model, drafter = _both(kind, layers, rows, keys, target, seed)
    for rounds, taps in rounds_of(target, seed):
        for each, mine in zip(rounds, ours(drafter, target, rounds), strict=True):
            table.add(case, _theirs(kind, model, each, taps), mine)


def _both(
    kind: str, layers: str, rows: int, keys: dict[str, Any], target: PreTrainedModel, seed: int
) -> tuple[Any, Any]:
    """One drafter in their class and, from the files it writes, in ours."""
    import speculators

    names = {"dflash": "DFlashDraftModel", "dspark": "DSparkDraftModel", "dflash2": "DFlash2DraftModel"}
    model_class = getattr(speculators, names[kind])
    model = model_class(_config(model_class.config_class, kind, layers, rows, keys)).eval()
    randomise(model, 50 + seed)
    model.embed_tokens.weight.data = target.get_input_embeddings().weight.data.clone()
    if rows == VOCAB:
        model.lm_head.weight.data = target.lm_head.weight.data.clone()
    else:
        listed = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:rows].sort().values
        known = torch.zeros(VOCAB, dtype=torch.bool)
        known[listed] = True
        model.load_vocab_mappings(known, listed - torch.arange(rows))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return model, load_drafter(folder, dtype=torch.float32)


def _config(config_class: Any, kind: str, layers: str, rows: int, keys: dict[str, Any]) -> Any:
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    shape = SHAPE | {"num_hidden_layers": len(layers), "layer_types": layer_types(layers)}
    if "s" in layers:
        shape |= {"sliding_window": WINDOW, "use_sliding_window": True}
    body = Qwen3Config(**shape)
    body._attn_implementation = "eager"
    loop = SpeculatorsConfig(
        algorithm=kind,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=BLOCK - 1)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
    )
    return config_class(
        transformer_layer_config=body, draft_vocab_size=rows, block_size=BLOCK, mask_token_id=MASK,
        aux_hidden_state_layer_ids=[layer + 1 for layer in TAPS], speculators_config=loop, **keys,
    )  # fmt: skip


@torch.no_grad()
def _theirs(kind: str, model: Any, each: Round, taps: Tensor) -> Drafted:
    """Their forward over the one block that starts at the anchor, then their head, slot after slot."""
    size = taps.shape[1]
    ids, chosen = torch.zeros(1, size, dtype=torch.long), torch.zeros(1, size)
    ids[0, each.position] = each.anchor
    chosen[0, each.position] = 1.0
    hidden, logits, *_ = model._backbone_forward(
        taps, ids, chosen, torch.zeros(1, size, WIDTH), torch.zeros(1, size, dtype=torch.long), max_anchors=1
    )
    first = 0 if model.config.sample_from_anchor else 1
    head = {"dspark": _markov, "dflash2": _selected}.get(kind)
    if head is None or (kind == "dspark" and model.markov_head is None):
        return Drafted(hidden, logits[:, first:], _ids(model, logits[:, first:].argmax(dim=-1)))
    return head(model, hidden, logits, each.anchor, first)


def _ids(model: Any, columns: Tensor) -> Tensor:
    return columns if model.d2t is None else columns + model.d2t[columns]


def _walk(anchor: Tensor, first: int, step: Callable[[int, Tensor], tuple[Tensor, Any]]) -> tuple[Tensor, list[Any]]:
    """``step(slot, ids before slots 0 to slot)`` -> its id; their training gives slots before the first the anchor."""
    before, chosen, found = anchor, list[Tensor](), list[Any]()
    for slot in range(BLOCK):
        token, part = step(slot, before)
        token = anchor if slot < first else token
        before = torch.cat([before, token], dim=1)
        if slot >= first:
            chosen.append(token)
            found.append(part)
    return torch.cat(chosen, dim=1), found


def _markov(model: Any, hidden: Tensor, logits: Tensor, anchor: Tensor, first: int) -> Drafted:
    def step(slot: int, before: Tensor) -> tuple[Tensor, Tensor]:
        bias = model.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden[:, : slot + 1])
        full = logits[:, slot : slot + 1] + bias[:, -1:]
        return _ids(model, full.argmax(dim=-1)), full

    tokens, rows = _walk(anchor, first, step)
    return Drafted(hidden, torch.cat(rows, dim=1), tokens)


def _selected(model: Any, hidden: Tensor, logits: Tensor, anchor: Tensor, first: int) -> Drafted:
    def step(slot: int, before: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        here = slice(slot, slot + 1)
        candidates, scores = model.candidate_selector.select(logits[:, here], hidden[:, here], before[:, -1:])
        return candidates.gather(-1, scores.argmax(dim=-1, keepdim=True))[..., 0], (candidates, scores)

    tokens, rows = _walk(anchor, first, step)
    candidates, scores = (torch.cat(part, dim=1) for part in zip(*rows, strict=True))
    return Drafted(hidden, scores, tokens, candidates, logits[:, first:])


if __name__ == "__main__":
    sys.exit(compare())
