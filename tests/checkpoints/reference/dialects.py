"""Raw config.json and raw tensors of each dialect -> ``SlowDrafter``, in the survey's words, one function a dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from tests.checkpoints.reference.block import Rules, Weights, plain
from tests.checkpoints.reference.drafter import SlowDrafter, concat, mixed
from tests.checkpoints.reference.heads import fly, gru, markov, parallel, selector

Config = Mapping[str, Any]
Reading = Callable[[Config, Mapping[str, Tensor]], SlowDrafter]


def _part(weights: Weights, *prefixes: str) -> dict[str, Any]:
    """The weights under the first of ``prefixes`` that any has, without it."""
    for prefix in prefixes:
        if found := {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}:
            return found
    return {}


def _nested(config: Config, key: str, default: Any = None) -> Any:
    """Drafter keys: in dflash_config first, in SpecForge's blocks second, at the top level last."""
    blocks = [config.get(name) or {} for name in ("dflash_config", "dspark_config", "domino_config")]
    value = next((block[key] for block in blocks if block.get(key) is not None), config.get(key))
    return default if value is None else value


def _rules(config: Config, windows: list[int | None], causal: list[bool], counting: str = "query") -> Rules:
    rope = config.get("rope_parameters") or {"rope_theta": 10000.0, **config}  # Qwen3Config's default
    return Rules(
        windows,
        causal,
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
        rope["rope_theta"],
        config.get("rms_norm_eps", 1e-6),
        counting=counting,
    )


def _sliding(config: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in config.get("layer_types") or []]


def _zlab_rules(config: Config) -> Rules:
    """is_causal decides for all layers; without it sliding layers are causal in the block, full ones are not.

    Model-Optimizer's use_swa: all layers windowed on the context only, not causal unless it says so.
    """
    layers = config["num_hidden_layers"]
    if _nested(config, "use_swa"):
        window = _nested(config, "swa_window_size") or config["sliding_window"]
        return _rules(config, [window] * layers, [_nested(config, "causal", False)] * layers, "context")
    sliding = _sliding(config) or [False] * layers
    said = _nested(config, "is_causal")
    causal = sliding if said is None else [said] * len(sliding)
    return _rules(config, [config["sliding_window"] if slides else None for slides in sliding], causal)


def _zlab_fields(config: Config, weights: Weights) -> dict[str, Any]:
    """What everything in z-lab's layout shares."""
    rules = _zlab_rules(config)
    block = _nested(config, "block_size", 16)
    return {
        "weights": weights,
        "rules": rules,
        "block": block,
        "mask": _nested(config, "mask_token_id"),
        "states": [index + 1 for index in _nested(config, "target_layer_ids")],
        "first": 1,
        "drafts": block - 1,
        "fuse": concat(weights, rules.eps, len(rules.windows)),
        "embedding_scale": _nested(config, "input_embedding_scale", 1.0),
        "multiplier": _nested(config, "output_multiplier"),
        "softcap": _nested(config, "final_logit_softcapping"),
    }


def zlab(config: Config, tensors: Mapping[str, Tensor]) -> SlowDrafter:
    stripped = {name.removeprefix("model.").replace("midlayer.", "layers.0."): each for name, each in tensors.items()}
    return SlowDrafter(**_zlab_fields(config, plain(stripped)))


def dflash2(config: Config, tensors: Mapping[str, Tensor]) -> SlowDrafter:
    weights = plain(tensors)
    head = selector(_part(weights, "candidate_selector."), _nested(config, "selector_top_k"))
    return SlowDrafter(**_zlab_fields(config, weights) | {"walk": head})


def modelopt(config: Config, tensors: Mapping[str, Tensor]) -> SlowDrafter:
    """z-lab's, with windows in its own words."""
    return SlowDrafter(**_zlab_fields(config, plain(tensors)))


def muse(config: Config, tensors: Mapping[str, Tensor]) -> SlowDrafter:
    """Everything at the top level, never causal, |q - k| <= W, the bare embedding module and head."""
    names = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
    weights = plain({names.get(name, name): tensor for name, tensor in tensors.items()})
    sliding = _sliding(config)
    windows = [config["sliding_window"] if slides else None for slides in sliding]
    fields = _zlab_fields(config, weights)
    fields["rules"] = _rules(config, windows, [False] * len(sliding), "inclusive")
    return SlowDrafter(**fields | {"embedding": "module", "borrows_scale": False})


def jetspec(config: Config, tensors: Mapping[str, Tensor]) -> SlowDrafter:
    """Causal on every layer if causal_head says so; one adapter for every tap."""
    weights = plain(tensors)
    fields = _zlab_fields(config, weights)
    layers = config["num_hidden_layers"]
    rules = fields["rules"]
    if config["dflash_config"].get("causal_head"):
        fields["rules"] = _rules(config, list(rules.windows), [True] * layers)
    fields["fuse"] = concat(weights, rules.eps, layers, weights.get("hidden_dim_adapter.proj.weight"))
    return SlowDrafter(**fields)


def domino(config: Config, tensors: Mapping[str, Tensor]) -> SlowDrafter:
    """B - 1 drafts either way: from slots 0 to B - 2 with shift_label, from 1 to B - 1 without."""
    weights = plain({name.removeprefix("logit_head."): tensor for name, tensor in tensors.items()})
    shifted, prefix = (_nested(config, key) for key in ("shift_label", "pure_draft_prefix_len"))
    fields = _zlab_fields(config, weights)
    return SlowDrafter(**fields | {"walk": gru(weights, shifted, prefix), "first": 0 if shifted else 1})


def dspark(config: Config, tensors: Mapping[str, Tensor]) -> SlowDrafter:
    """Next-position: B drafts from B slots. Tensors nested, flat or under logit_head."""
    weights = plain({name.removeprefix("logit_head."): tensor for name, tensor in tensors.items()})
    head = markov(_part(weights, "markov_head.") or weights, _nested(config, "markov_head_type"))
    fields = _zlab_fields(config, weights)
    return SlowDrafter(**fields | {"walk": head, "first": 0, "drafts": fields["block"]})


def deepspec(config: Config, tensors: Mapping[str, Tensor]) -> SlowDrafter:
    """The same at the top level, with an embedding and a head of its own; without a Markov head where its rank is 0."""
    weights = plain(tensors)
    head = _part(weights, "markov_head.")
    fields = _zlab_fields(config, weights) | {"embedding": "own", "first": 0, "drafts": config["block_size"]}
    return SlowDrafter(**fields | {"walk": markov(head, config["markov_head_type"]) if head else parallel})


def speculators(config: Config, tensors: Mapping[str, Tensor]) -> SlowDrafter:
    """Ids are hidden_states indices, W context rows before the anchor for every slot, own raw embedding, d2t adds."""
    kind, layer, weights = config["speculators_model_type"], config["transformer_layer_config"], plain(tensors)
    sliding = _sliding(layer) or [False] * layer["num_hidden_layers"]
    free = config.get("sliding_window_non_causal", kind == "dflash2")
    windows = [layer["sliding_window"] if slides else None for slides in sliding]
    rules = _rules(layer, windows, [slides and not free for slides in sliding], "anchor")
    block, shifted = config.get("block_size", 8), config.get("sample_from_anchor", kind == "dspark")
    head = parallel
    if kind == "dspark":
        head = markov(_part(weights, "markov_head."), config.get("markov_head_type", "vanilla"))
    elif kind == "dflash2":
        head = selector(_part(weights, "candidate_selector."), config.get("selector_top_k", 16))
    return SlowDrafter(
        weights,
        rules,
        block,
        config["mask_token_id"],
        config["aux_hidden_state_layer_ids"],
        0 if shifted else 1,
        block if shifted else block - 1,
        concat(weights, rules.eps, len(sliding)),
        head,
        raw_last=True,
        embedding="own" if "embed_tokens.weight" in weights else "rows",
        borrows_scale=False,
        columns=[row + int(offset) for row, offset in enumerate(tensors["d2t"])] if "d2t" in tensors else None,
    )


def angelspec(config: Config, tensors: Mapping[str, Tensor]) -> SlowDrafter:
    """Same-position in every variant, DSpark too; blocks of 8 where nothing is said."""
    names = {"context_proj.weight": "fc.weight", "context_norm.weight": "hidden_norm.weight"}
    names["final_norm.weight"] = "norm.weight"
    weights = plain({names.get(name, name): tensor for name, tensor in tensors.items()})
    fields = _zlab_fields({"block_size": 8, **config}, weights)
    if "embed_tokens.weight" in weights:
        fields["embedding"] = "own"
    if "layer_fusion_weights" in weights:
        fields["fuse"] = mixed(weights, config["rms_norm_eps"], weights["layer_fusion_weights"])
    if correction := _part(weights, "hidden_correction."):
        fields["walk"] = fly(correction, config["rms_norm_eps"])
    elif head := _part(weights, "markov_head."):
        fields["walk"] = markov(head, "vanilla")
    return SlowDrafter(**fields)
