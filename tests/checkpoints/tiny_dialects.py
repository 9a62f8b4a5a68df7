"""Tiny checkpoints of every dialect, as the survey's tables say: their keys, their tensor names, random weights.

Made for the tiny targets of ``tests/tiny.py``: width 32, four layers, 96 ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.checkpoints.tiny import LAYERS, MASK, tiny_config, tiny_tensors

WIDTH, VOCAB, DEPTH, BLOCK, W, RANK, REDUCED = 32, 96, 4, 4, 5, 6, 24
FULL, SLIDING = "full_attention", "sliding_attention"
Shapes = Mapping[str, tuple[int, ...]]
WINDOW = {"sliding_window": W, "use_sliding_window": True}
MARKOV = {"markov_rank": RANK, "confidence_head_with_markov": True}


@dataclass(frozen=True)
class Checkpoint:
    """One case: what lies in its folder, and how it is called."""

    dialect: str  # as the product names it
    reading: str  # function of tests/checkpoints/reference/dialects.py
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    target: str = "llama"


def random(shapes: Shapes, seed: int = 7) -> dict[str, Tensor]:
    """Tensors spread enough to matter. A confidence head is sure of every slot, so that no draft is cut short."""
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(*shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    for name, tensor in made.items():
        if name.endswith(("proj.weight", "projection.weight")):  # keeps float32's rounding far below what is compared
            tensor *= 0.5
        if name.endswith("norm.weight"):
            tensor += 1.0
        elif name.endswith("base_kernel"):
            tensor[:, 0] += 1.0
        elif "confidence" in name:
            tensor.fill_(25.0) if name.endswith("bias") else tensor.mul_(0.1)
    return made


def zlab_config(nested: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """z-lab's newer layout at the targets' sizes. ``nested`` goes into dflash_config."""
    keys = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": [2, 0]} | dict(nested or {})
    keys = {key: value for key, value in keys.items() if value is not None}
    sizes = {"hidden_size": WIDTH, "head_dim": 8, "vocab_size": VOCAB, "num_target_layers": DEPTH}
    theta = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    return tiny_config(**{**sizes, **theta, "dflash_config": keys, **changes})


def body(config: Mapping[str, Any], **names: str) -> dict[str, Tensor]:
    """z-lab's tensors for this config; ``names`` renames, as fc="context_proj"."""
    tensors = {name: tensor * (1 if "norm" in name else 0.45) for name, tensor in tiny_tensors(dict(config)).items()}
    return {names.get(name.split(".")[0], name.split(".")[0]) + name[len(name.split(".")[0]) :]: each
            for name, each in tensors.items()}  # fmt: skip


def conv_shapes() -> dict[str, tuple[int, ...]]:
    """DFlash 2's convolutions: two taps, groups of 8 channels."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        for part in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{layer}.{part}.base_kernel"] = (2, 2, WIDTH)
            shapes[f"layers.{layer}.{part}.kernel_projection.weight"] = (2 * 2 * (WIDTH // 8), WIDTH)
    return shapes


SELECTOR = {
    "candidate_selector.hidden_projection.weight": (RANK, WIDTH),
    "candidate_selector.predecessor_codebook": (VOCAB, RANK),
    "candidate_selector.successor_codebook": (VOCAB, RANK),
}
OWN = {"embed_tokens.weight": (VOCAB, WIDTH), "lm_head.weight": (VOCAB, WIDTH)}
DFLASH2_KEYS = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": RANK, "selector_top_k": 5}


def markov_shapes(
    kind: str, columns: int = VOCAB, head: str = "markov_head.", sure: str = "confidence_head.proj."
) -> Any:
    """A Markov head of one type and a confidence head that reads e(p) too."""
    shapes: dict[str, tuple[int, ...]] = {f"{head}markov_w1.weight": (VOCAB, RANK)}
    shapes[f"{head}markov_w2.weight"] = (columns, RANK)
    if kind == "gated":
        shapes |= {f"{head}gate_proj.weight": (RANK, WIDTH + RANK), f"{head}gate_proj.bias": (RANK,)}
    elif kind == "rnn":
        shapes |= {f"{head}joint_proj.weight": (3 * RANK, 2 * RANK + WIDTH), f"{head}joint_proj.bias": (3 * RANK,)}
    return shapes | {f"{sure}weight": (1, WIDTH + RANK), f"{sure}bias": (1,)}


def reduced_ids() -> Tensor:
    """The target's ids of a reduced head's rows."""
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))[:REDUCED].sort().values


def zlab(dialect: str = "zlab", target: str = "llama", **changes: Any) -> Checkpoint:
    config = zlab_config(**changes)
    return Checkpoint(dialect, "zlab", config, body(config), target)


def older_zlab() -> Checkpoint:
    """transformers 4 and May 2026: block_size, theta at the top, ``model.`` before every name."""
    config = zlab_config({"block_size": None}, block_size=BLOCK, rope_parameters=None, rope_theta=500000.0)
    config |= {"rope_scaling": None, "layer_types": None}
    prefixed = {f"model.{name}".replace("layers.0.", "midlayer."): each for name, each in body(config).items()}
    return Checkpoint("zlab", "zlab", config, prefixed)


def dflash2(target: str = "llama", **nested: Any) -> Checkpoint:
    config = zlab_config(
        DFLASH2_KEYS | nested,
        architectures=["DFlash2DraftModel"],
        layer_types=[SLIDING] * LAYERS,
        is_causal=False,
        **WINDOW,
    )
    return Checkpoint("dflash2", "dflash2", config, body(config) | random({**conv_shapes(), **SELECTOR}), target)


def dflash2_modelopt(**nested: Any) -> Checkpoint:
    """Its exporter: ``projector_type``, block_size in both places, layer_types full, is_causal at the top."""
    keys = {"projector_type": "dflash2", **DFLASH2_KEYS, **nested}
    top = {"block_size": BLOCK, "is_causal": False, "sliding_window": nested.get("swa_window_size")}
    config = zlab_config(keys, architectures=["DFlash2DraftModel"], **top)
    return Checkpoint("dflash2", "dflash2", config, body(config) | random({**conv_shapes(), **SELECTOR}))


def modelopt(**nested: Any) -> Checkpoint:
    """Its exporter's template: layer_types stay full, sliding_window at the top."""
    plain = zlab_config(
        {"block_size": None} | nested, block_size=BLOCK, torch_dtype="bfloat16", transformers_version=None
    )
    config = {key: value for key, value in plain.items() if key not in ("max_window_layers", "use_sliding_window")}
    config |= {"rope_theta": 1e6, "rope_scaling": None, "sliding_window": nested.get("swa_window_size")}
    del config["rope_parameters"]
    return Checkpoint("modelopt", "modelopt", config, body(config))


def muse(target: str = "llama", window: int = W, layers: tuple[str, ...] = (SLIDING, SLIDING)) -> Checkpoint:
    """Drafter fields at the top level, two renamed tensors, no vocab_size, no embedding."""
    config = zlab_config(layer_types=list(layers), sliding_window=window) | {"rms_norm_eps": 1e-5}
    config |= {"architectures": ["MuseGlimmerAssistantModel"], "model_type": "muse_glimmer_assistant"}
    config |= config.pop("dflash_config")
    for key in ("vocab_size", "use_sliding_window", "max_window_layers", "num_target_layers", "attention_bias"):
        del config[key]
    tensors = body(config, fc="encoder.fc", hidden_norm="encoder.output_norm_enc")
    return Checkpoint("muse_assistant", "muse", config, tensors, target)


def jetspec(adapter: bool = False, **nested: Any) -> Checkpoint:
    config = zlab_config(nested)
    extra = random({"hidden_dim_adapter.proj.weight": (WIDTH, WIDTH)}) if adapter else {}
    return Checkpoint("jetspec", "jetspec", config, body(config) | extra)


def domino(shifted: bool, prefix: int, at: str = "", *, nested: Mapping[str, Any] | None = None) -> Checkpoint:
    """SpecForge's and Model-Optimizer's keys; ``at`` is the older prefix of the head's names."""
    keys = {"projector_type": "domino", "shift_label": shifted, "pure_draft_prefix_len": prefix}
    config = zlab_config(keys | {"gru_hidden_dim": 10, "emb_dim": 7} | dict(nested or {}), emb_dim=7)
    shapes = {
        f"{at}prefix_gru.weight_ih_l0": (30, WIDTH),
        f"{at}prefix_gru.weight_hh_l0": (30, 10),
        f"{at}embed_proj.0.weight": (7, WIDTH + 10),
        f"{at}embed_proj.2.weight": (VOCAB, 7),
    }
    return Checkpoint("domino", "domino", config, body(config) | random(shapes))


def dspark(
    kind: str, head: str = "markov_head.", sure: str = "confidence_head.proj.", *,
    nested: Mapping[str, Any] | None = None, **changes: Any,
) -> Checkpoint:  # fmt: skip
    """SpecForge (nested names), Model-Optimizer (flat names and ``shift_label``), or under logit_head."""
    keys = {"projector_type": "dspark", "markov_head_type": kind, **MARKOV}
    keys |= {"shift_label": True} if head == "" else {"enable_confidence_head": True}
    config = zlab_config(keys | dict(nested or {}), **changes)
    return Checkpoint("dspark", "dspark", config, body(config) | random(markov_shapes(kind, VOCAB, head, sure)))


def beside(made: Checkpoint, block: str, kept: tuple[str, ...]) -> Checkpoint:
    """SpecForge's newer layout: the head's keys in a block of their own; ``kept`` stay in dflash_config."""
    nested = made.config["dflash_config"]
    blocks = {
        "dflash_config": {key: value for key, value in nested.items() if key in kept},
        block: {key: value for key, value in nested.items() if key not in kept},
    }
    return replace(made, config={**made.config, **blocks})


def deepspec(kind: str | None, taps: tuple[int, ...] = (-1, 1), **changes: Any) -> Checkpoint:
    """All at the top level, own embedding and head; ``kind`` None is their "dflash" with a rank of 0."""
    config = zlab_config({"target_layer_ids": list(taps)}, architectures=["Qwen3DSparkModel"], num_anchors=4, **changes)
    config |= config.pop("dflash_config")
    config |= {"markov_rank": RANK if kind else 0, "enable_confidence_head": kind is not None}
    shapes = dict(OWN)
    if kind:
        config |= {"markov_head_type": kind, "confidence_head_with_markov": True}
        shapes |= markov_shapes(kind)
    tensors = body(config) | random(shapes)
    return Checkpoint("dspark" if kind else "deepspec-dflash", "deepspec", config, tensors)


def speculators(
    kind: str, *, reduced: bool = True, own: bool = True, head: bool = True, layer: Any = None, shapes: Any = None,
    target: str = "llama", **top: Any,
) -> Any:  # fmt: skip
    """Ids in hidden_states counting, the body in transformer_layer_config, no top-level model_type."""
    reduced = reduced and head
    inner = zlab_config(**(layer or {}))
    del inner["dflash_config"], inner["num_target_layers"], inner["architectures"]
    config = {
        "architectures": [{"dflash": "DFlash", "dspark": "DSpark", "dflash2": "DFlash2"}[kind] + "DraftModel"],
        "auto_map": {"": "config.Config"}, "speculators_model_type": kind, "speculators_version": "0.7.1",
        "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": None, "architectures": []}},
        "aux_hidden_state_layer_ids": [3, 1], "block_size": BLOCK, "mask_token_id": MASK, "tie_word_embeddings": False,
        "draft_vocab_size": REDUCED if reduced else VOCAB, "target_hidden_size": None,
        "transformer_layer_config": inner,
        **top,
    }  # fmt: skip
    sizes = dict(OWN) | {"lm_head.weight": (config["draft_vocab_size"], WIDTH)} | (shapes or {})
    if not own:
        del sizes["embed_tokens.weight"]
    if not head:
        del sizes["lm_head.weight"]
    tensors = body(inner) | random(sizes)
    if reduced:
        ids = reduced_ids()  # d2t: row i means id i + d2t[i]
        tensors |= {
            "d2t": ids - torch.arange(REDUCED),
            "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True),
        }
    return Checkpoint(f"speculators-{kind}", "speculators", config, tensors, target)


def sparse_speculators() -> Checkpoint:
    """transformer_layer_config holds what differs from Qwen3Config and no more: theta is the class's 10000."""
    made = speculators("dflash", layer={"layer_types": [FULL] * LAYERS})
    layer = made.config["transformer_layer_config"]
    for key in ("rope_parameters", "rms_norm_eps", "hidden_act", "attention_bias", "layer_types", "sliding_window"):
        del layer[key]
    return made


def speculators_dspark(kind: str, **top: Any) -> Checkpoint:
    keys = {"markov_head_type": kind, "enable_confidence_head": True, **MARKOV}
    columns = REDUCED if top.get("head", True) else VOCAB
    return speculators("dspark", shapes=markov_shapes(kind, columns), **keys | top)


def angelspec(dialect: str, shapes: Shapes, *, fc: bool = True, **changes: Any) -> Checkpoint:
    """num_target_layers counts taps, theta at the top, no block_size, own embedding in every variant."""
    config = zlab_config({"block_size": None}, model_type="dflash", num_target_layers=2, rope_parameters=None)
    config |= config.pop("dflash_config") | {"target_num_hidden_layers": DEPTH, "rope_theta": 1e6} | changes
    del config["layer_types"], config["use_sliding_window"], config["max_window_layers"]
    tensors = body(config, fc="context_proj", hidden_norm="context_norm", norm="final_norm")
    if not fc:
        del tensors["context_proj.weight"]
    tensors |= random({"embed_tokens.weight": (VOCAB, WIDTH), **shapes})
    return Checkpoint(dialect, "angelspec", config, tensors)


MIX = {"layer_fusion_weights": (LAYERS, 2)}
TARGET_KEYS = {
    f"layers.{layer}.self_attn.{part}_proj_target.weight": (8, WIDTH) for layer in range(LAYERS) for part in "kv"
}
CORRECTION = {
    "hidden_correction.hidden_norm.weight": (WIDTH,),
    "hidden_correction.embed_norm.weight": (WIDTH,),
    "hidden_correction.gate_proj.weight": (9, 2 * WIDTH),
    "hidden_correction.up_proj.weight": (9, 2 * WIDTH),
    "hidden_correction.down_proj.weight": (WIDTH, 9),
}


def angelslim_dflare() -> Checkpoint:
    """AngelSlim keeps z-lab's config and norms and has no embedding of its own."""
    config = zlab_config(architectures=["QwenDFlareDraftModel"])
    tensors = body(config) | random({**MIX, **TARGET_KEYS})
    del tensors["fc.weight"]
    return Checkpoint("dflare", "angelspec", config, tensors)
