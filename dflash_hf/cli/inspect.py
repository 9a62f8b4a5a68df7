"""``dflash-hf inspect``: what a drafter's files say, what was filled in for them, and whether a target fits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_hf.bench.pair import pick_dtype, refuse_unknown_dtype
from dflash_hf.cli.command import CHECK_FAILED, PairOptions, command, emit_json
from dflash_hf.cli.lines import megabytes, table
from dflash_hf.cli.quiet import quiet_transformers

if TYPE_CHECKING:
    from dflash_hf.drafter.model import DFlashDrafter

__all__ = ["register"]


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
    from dflash_hf.checkpoints.origins import FIELDS
    from dflash_hf.drafter.memory import context_bytes, taps_bytes, weight_bytes

    state, files = drafter.state_dict(), asdict(drafter.provenance)
    names = files.pop("names")
    return {
        "files": files,
        "config": {name: getattr(drafter.config, name) for name in FIELDS},
        "parameters": sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point()),
        "tensors": {
            names[name]: {
                "in_memory": name,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).removeprefix("torch."),
            }
            for name, tensor in state.items()
        },
        "memory": {
            "weights_bytes": weight_bytes(drafter),
            "context_bytes_per_1k_tokens": context_bytes(drafter.config, 1000, drafter.dtype),
            "context_bytes_at_32k_tokens": context_bytes(drafter.config, 32 * 1024, drafter.dtype),
            "taps_bytes_per_1k_tokens": taps_bytes(drafter.config, 1000, drafter.dtype),
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
    files, memory = body["files"], body["memory"]
    typer.echo(f"source: {files['source']}" + (f" at {files['revision']}" if files["revision"] else ""))
    typer.echo(f"dialect: {files['dialect']}, by {', '.join(files['evidence'])}")
    typer.echo(f"files: {', '.join(files['files'])}; weights stored in {files['stored_dtype']}")
    typer.echo(f"{body['parameters']:,} parameters in {len(body['tensors'])} tensors")
    typer.echo(
        f"memory: weights {megabytes(memory['weights_bytes'])}, "
        f"context {megabytes(memory['context_bytes_per_1k_tokens'])} per 1000 tokens, "
        f"{megabytes(memory['context_bytes_at_32k_tokens'])} at 32k; "
        f"taps {megabytes(memory['taps_bytes_per_1k_tokens'])} per 1000 tokens of a forward"
    )
    table([(name, value, files["origins"].get(name, "")) for name, value in _telling(body)])
    typer.echo("  what is not listed is as in DFlash v1 (all of it: --json)")
    for title, lines in (("filled in", files["defaults"]), ("note", files["notes"])):
        for line in lines:
            typer.echo(f"{title}: {line}")
    if tensors:
        rows = [(name, item["in_memory"], f"{item['shape']} {item['dtype']}") for name, item in body["tensors"].items()]
        typer.echo("tensors: name in the files, name in memory, shape and dtype")
        table(rows)
    if "target" in body:
        fit = body["target"]
        typer.echo(f"fits {fit['name']}" if fit["fits"] else f"does not fit: {fit['why']}")


def _telling(body: dict[str, Any]) -> list[tuple[str, Any]]:
    """Values that the files, or a default, decided, and those that differ from DFlash v1's."""
    from dflash_hf.config import DFlashConfig

    plain, origins = DFlashConfig(), body["files"]["origins"]
    means = f"what {body['files']['dialect']} means"
    return [
        (name, value)
        for name, value in body["config"].items()
        if origins.get(name) != means or (value != getattr(plain, name) and value not in (None, False))
    ]
