"""``dflash-hf inspect``: what a drafter's files say, what was filled in for them, and whether a target fits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_hf.bench.pair import pick_dtype, refuse_unknown_dtype
from dflash_hf.cli.command import CHECK_FAILED, PairOptions, command, emit_json
from dflash_hf.cli.quiet import quiet_transformers

if TYPE_CHECKING:
    from dflash_hf.drafter.model import DFlashDrafter

__all__ = ["register"]

# The description of the drafter; what PretrainedConfig adds on its own says nothing about it.
_CONFIG = (
    "target_name", "block_size", "mask_token_id", "target_layer_ids", "num_target_layers", "target_hidden_size",
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "layer_windows", "layer_causal", "rope_parameters", "max_position_embeddings", "rms_norm_eps", "hidden_act",
    "attention_bias", "embedding", "embedding_scale", "output_multiplier", "final_logit_softcapping",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    command(app, "inspect")(inspect)


def inspect(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[DRAFTER]", help="Folder or Hub id. Default: --drafter, else the embedded one."),
    ] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor with its shape.")] = False,
    *,
    pair: PairOptions,
    as_json: bool,
) -> None:
    """Show a drafter's dialect, config and tensors; with --target, whether it fits that target."""
    if source is not None and pair.drafter not in (None, source):
        raise typer.BadParameter(f"two drafters were named: {source} and --drafter {pair.drafter}")
    refuse_unknown_dtype(pair.dtype)
    drafter = _load(source or pair.drafter, pair)
    body = _describe(drafter)
    if pair.target is not None:
        body["target"] = _fit(pair.target, drafter, pair)
    if as_json:
        emit_json("inspect", body)
    else:
        _show(body, tensors)
    if pair.target is not None and not body["target"]["fits"]:
        raise typer.Exit(CHECK_FAILED)


def _load(source: str | None, options: PairOptions) -> DFlashDrafter:
    from dflash_hf.drafter.model import DFlashDrafter

    quiet_transformers()
    if source is None:
        from dflash_hf.pretrained.smollm2 import embedded_drafter_folder

        source = str(embedded_drafter_folder())
    return DFlashDrafter.from_pretrained(
        source,
        revision=options.revision,
        dtype=pick_dtype(options.dtype, accelerated=True),
        device_map=options.device_map,
        attn_implementation=options.attn_implementation,
        local_files_only=options.local_files_only,
    )


def _describe(drafter: DFlashDrafter) -> dict[str, Any]:
    state = drafter.state_dict()
    return {
        "files": asdict(drafter.provenance),
        "config": {name: getattr(drafter.config, name) for name in _CONFIG},
        "parameters": sum(tensor.numel() for tensor in state.values()),
        "tensors": {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            for name, tensor in state.items()
        },
    }


def _fit(target: str, drafter: DFlashDrafter, options: PairOptions) -> dict[str, Any]:
    """Only the target's shape is needed, so its weights stay where they are."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from dflash_hf import check_pair
    from dflash_hf.errors import HubError, IncompatiblePairError, UnsupportedTargetError

    try:
        config = AutoConfig.from_pretrained(target, local_files_only=options.local_files_only)
    except (OSError, ValueError) as error:
        raise HubError(f"cannot read the target {target}: {str(error).strip().splitlines()[0]}") from error
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.config._name_or_path = target
    try:
        check_pair(model, drafter)
    except (IncompatiblePairError, UnsupportedTargetError) as error:
        return {"name": target, "fits": False, "why": str(error)}
    return {"name": target, "fits": True, "why": None}


def _show(body: dict[str, Any], tensors: bool) -> None:
    files = body["files"]
    typer.echo(f"source: {files['source']}" + (f" at {files['revision']}" if files["revision"] else ""))
    typer.echo(f"dialect: {files['dialect']}, stored in {files['stored_dtype']}; files: {', '.join(files['files'])}")
    typer.echo(f"{body['parameters']:,} parameters in {len(body['tensors'])} tensors")
    for name, value in body["config"].items():
        typer.echo(f"  {name}: {value}")
    for title, lines in (("filled in", files["defaults"]), ("note", files["notes"])):
        for line in lines:
            typer.echo(f"{title}: {line}")
    if tensors:
        for name, tensor in body["tensors"].items():
            typer.echo(f"  {name} {tensor['shape']} {tensor['dtype']}")
    if "target" in body:
        fit = body["target"]
        typer.echo(f"fits {fit['name']}" if fit["fits"] else f"does not fit: {fit['why']}")
