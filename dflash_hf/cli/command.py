"""What every command shares, defined once: the pair options, ``--json``, ``--debug``, and how a command ends.

Exit codes: 0 done, 1 failure, 2 usage, 3 a check failed, 130 interrupted. Results go to stdout, all else to stderr.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from dflash_hf.cli.quiet import quiet_libraries
from dflash_hf.errors import DFlashError, HubError, IncompatiblePairError, OptionsError

__all__ = [
    "CHECK_FAILED",
    "FAILURE",
    "INTERRUPTED",
    "USAGE",
    "DraftWindow",
    "PairOptions",
    "TargetOptions",
    "command",
    "emit_json",
    "note",
]

FAILURE, USAGE, CHECK_FAILED, INTERRUPTED = 1, 2, 3, 130

_PAIR_PANEL, _TARGET_PANEL, _COMMON_PANEL = "The pair", "The target", "Everywhere"


@dataclass(frozen=True, slots=True)
class PairOptions:
    """Which models, and how they are loaded. The one block of options of every command that loads models."""

    target: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub id of the model whose text is wanted. Default: the embedded SmolLM2-135M-Instruct.",
            rich_help_panel=_PAIR_PANEL,
        ),
    ] = None
    drafter: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub id of the DFlash drafter; auto: the one published for the target. Default: the "
            "embedded one, for the embedded target.",
            rich_help_panel=_PAIR_PANEL,
        ),
    ] = None
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit of the drafter on the Hub.", rich_help_panel=_PAIR_PANEL),
    ] = None
    dtype: Annotated[
        str,
        typer.Option(
            help="auto, float32, bfloat16 or float16. auto: as stored on a GPU, float32 on a CPU.",
            rich_help_panel=_PAIR_PANEL,
        ),
    ] = "auto"
    device_map: Annotated[
        str | None,
        typer.Option(
            help="As transformers has it: cpu, cuda, cuda:1, auto. Default: the accelerator, when there is one.",
            rich_help_panel=_PAIR_PANEL,
        ),
    ] = None
    quantization: Annotated[
        str | None,
        typer.Option(
            help="bnb-8bit or bnb-4bit (nf4), of the target; the drafter stays in its own dtype. Needs bitsandbytes.",
            rich_help_panel=_PAIR_PANEL,
        ),
    ] = None
    attn_implementation: Annotated[
        str | None,
        typer.Option(help="eager, sdpa, flash_attention_2 ...", rich_help_panel=_PAIR_PANEL),
    ] = None
    local_files_only: Annotated[
        bool, typer.Option("--local-files-only", help="Never ask the Hub.", rich_help_panel=_PAIR_PANEL)
    ] = False


# How to draft: for every command that does.
DraftWindow = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="The drafter sees only so many of the newest tokens. Default: as its layers' own windows have it.",
        rich_help_panel=_PAIR_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Which target, and how it is loaded: of commands that need no drafter."""

    target: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub id. Default: the embedded SmolLM2-135M-Instruct.", rich_help_panel=_TARGET_PANEL
        ),
    ] = None
    dtype: Annotated[
        str,
        typer.Option(
            help="auto, float32, bfloat16 or float16. auto: as stored on a GPU, float32 on a CPU.",
            rich_help_panel=_TARGET_PANEL,
        ),
    ] = "auto"
    device_map: Annotated[
        str | None,
        typer.Option(
            help="As transformers has it. Default: the accelerator, when there is one.", rich_help_panel=_TARGET_PANEL
        ),
    ] = None
    quantization: Annotated[
        str | None,
        typer.Option(help="bnb-8bit or bnb-4bit (nf4). Needs bitsandbytes.", rich_help_panel=_TARGET_PANEL),
    ] = None
    local_files_only: Annotated[
        bool, typer.Option("--local-files-only", help="Never ask the Hub.", rich_help_panel=_TARGET_PANEL)
    ] = False
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads. Default: the recipe's, or torch's.", rich_help_panel=_TARGET_PANEL),
    ] = None


# Parameters of a command that stand for a block of options.
_BLOCKS: dict[str, type] = {"pair": PairOptions, "target": TargetOptions}


@dataclass(frozen=True, slots=True)
class _Common:
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout.", rich_help_panel=_COMMON_PANEL)
    ] = False
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Tracebacks and the libraries' own messages.", rich_help_panel=_COMMON_PANEL),
    ] = False


def command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command. ``pair`` and ``target`` stand for blocks of options, ``as_json`` for ``--json``."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters
        blocks = {key: _BLOCKS[key] for key in own if key in _BLOCKS}
        spliced = {key: value for key, value in own.items() if key not in (*blocks, "as_json")}
        block_parameters = [parameter for block in blocks.values() for parameter in _parameters(block)]
        parameters = [*spliced.values(), *block_parameters, *_parameters(_Common)]

        def run(**values: Any) -> None:
            debug = values.pop("debug") or bool(os.environ.get("DFLASH_HF_DEBUG"))
            as_json = values.pop("as_json")
            if "as_json" in own:
                values["as_json"] = as_json
            for key, block in blocks.items():
                values[key] = block(**{item.name: values.pop(item.name) for item in fields(block)})
            _run(function, values, debug)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name)(run)
        return function

    return register


def emit_json(kind: str, body: dict[str, Any]) -> None:
    """Write one JSON object with its schema name to stdout."""
    typer.echo(json.dumps({"schema": f"dflash-hf/{kind}/1", **body}, indent=1, ensure_ascii=False))


def note(text: str) -> None:
    """Progress and remarks: stderr."""
    typer.echo(text, err=True)


def _parameters(block: type) -> list[inspect.Parameter]:
    hints = get_type_hints(block, include_extras=True)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if item.default is MISSING else item.default,
            annotation=hints[item.name],
        )
        for item in fields(block)
    ]


def _run(function: Callable[..., None], values: dict[str, Any], debug: bool) -> None:
    """Call a command and turn whatever ends it into an exit code and, at most, two lines."""
    try:
        with quiet_libraries(debug):
            function(**values)
    except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        sys.stdout.flush()
        note("\ninterrupted")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        _explain(error, debug)
        raise typer.Exit(USAGE if isinstance(error, OptionsError) else FAILURE) from None


def _explain(error: Exception, debug: bool) -> None:
    text = str(error) if isinstance(error, DFlashError) else f"{type(error).__name__}: {error}"
    note(f"error: {text}")
    hints = list(getattr(error, "__notes__", []))
    if isinstance(error, IncompatiblePairError):
        hints.append("dflash-hf inspect DRAFTER --target TARGET shows what each side says")
    elif isinstance(error, HubError):
        hints.append("a local folder works as well as a Hub id; --local-files-only uses what was downloaded before")
    elif not isinstance(error, DFlashError) and not debug:
        hints.append("run the command again with --debug for the traceback")
    for hint in hints:
        note(f"hint: {hint}")
