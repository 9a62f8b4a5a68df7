"""``dflash-hf data regenerate``: what a drafter is trained on, made by the target itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_hf.cli.command import command, emit_json, note
from dflash_hf.cli.quiet import quiet_transformers

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="What a drafter is trained on, made by the target itself.", no_args_is_help=True)
    group.callback()(lambda: None)
    command(group, "regenerate")(regenerate)
    app.add_typer(group, name="data")


def regenerate(
    prompts: Annotated[Path, typer.Argument(help="JSON lines with question, prompt or turns.")],
    folder: Annotated[Path, typer.Argument(help="Where the answers go.")],
    layers: Annotated[str, typer.Option(help="Target layers to tap, 0-based, with commas.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many prompts.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Answers made at once.")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    target: Annotated[
        str | None, typer.Option(help="Folder or Hub id of the target. Default: the embedded SmolLM2-135M-Instruct.")
    ] = None,
    *,
    as_json: bool,
) -> None:
    """Let the target answer prompts greedily and write down what its tapped layers put out on the way."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dflash_hf.bench.prompts import encode, load_prompts
    from dflash_hf.pretrained.smollm2 import embedded_target_folder
    from dflash_hf.target.view import view_target
    from dflash_hf.training.regenerate import regenerate as answer_prompts

    try:
        tapped = [int(layer) for layer in layers.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--layers takes numbers with commas, got {layers!r}") from None
    quiet_transformers()
    torch.set_num_threads(threads)
    source = target or str(embedded_target_folder())
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    if outside := [layer for layer in tapped if not 0 <= layer < view_target(model).num_layers]:
        raise typer.BadParameter(f"--layers {outside}: the target has layers 0 to {view_target(model).num_layers - 1}")
    tokenizer = AutoTokenizer.from_pretrained(source)
    encoded = [encode(tokenizer, prompt.text)["input_ids"][0].tolist() for prompt in load_prompts(prompts, limit)]
    ends = model.generation_config.eos_token_id
    answer_prompts(
        view_target(model),
        encoded,
        folder,
        tapped,
        eos_ids=ends if isinstance(ends, list) else [] if ends is None else [ends],
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        progress=lambda done, total: note(f"{done} of {total} batches"),
    )
    if as_json:
        emit_json("answers", {"folder": str(folder), "prompts": len(encoded), "layers": tapped})
    else:
        typer.echo(f"{folder}: {len(encoded)} answers")
