"""``dflash-hf demo``: the page that shows drafting at work."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from dflash_hf.cli.command import PairOptions, command, note
from dflash_hf.cli.pair import source_of
from dflash_hf.cli.quiet import quiet_transformers
from dflash_hf.errors import DFlashError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    command(app, "demo")(demo)


def demo(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines reach the page.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: the first free one from 7860.")] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens a visitor may ask for.")] = 1024,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds of a run, drafted and plain each.")] = 300.0,
    mcp: Annotated[bool, typer.Option("--mcp", help="Also serve an MCP tool; needs gradio[mcp].")] = False,
    *,
    pair: PairOptions,
) -> None:
    """Serve a page that shows each round: what was drafted, what was kept, and what it gained."""
    source = source_of(pair)
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise DFlashError(f"the demo needs gradio ({error}); pip install 'dflash-hf[demo]'") from error
    if mcp:
        _refuse_without_mcp()
    import transformers  # noqa: F401 - silenced as soon as it is there

    quiet_transformers()
    from dflash_demo.serve import serve
    from dflash_demo.settings import Limits

    limits = Limits(new_tokens=max_new_tokens, seconds=time_limit)
    serve(source, limits, host=host, port=port, open_browser=open_browser, mcp=mcp, say=note)


def _refuse_without_mcp() -> None:
    """Gradio serves the page without its tool, and says so nowhere."""
    try:
        import_module("mcp.server")
    except ImportError as error:
        raise DFlashError(f"--mcp needs Gradio's extra ({error}); pip install 'gradio[mcp]'") from error
