"""Start the page: ``make demo``, ``dflash-hf demo`` and the Space come here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from dflash_demo.settings import Limits
from dflash_hf.bench.pair import PairSource

__all__ = ["launch_options", "serve"]


def serve(
    source: PairSource,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = False,
    mcp: bool = False,
    say: Callable[[str], None] = print,
    **more: Any,
) -> None:
    """Serve until interrupted.

    Args:
        source: which pair.
        limits: of each run.
        host: address to listen on; "0.0.0.0" is every one, for others to reach.
        port: None takes the first free one from 7860 on.
        open_browser: open the page here.
        mcp: also serve the endpoint as an MCP tool (needs ``gradio[mcp]``).
        say: told the page's address.
        more: for Gradio's ``launch``.
    """
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before gradio is imported, which reads it
    from dflash_demo.page import build
    from dflash_demo.pairs import Pairs

    pairs = Pairs(source)
    pairs.preload(say)
    page = build(pairs, limits, mcp=mcp)
    page.launch(
        server_name=host,
        server_port=port,
        inbrowser=open_browser,
        mcp_server=mcp,
        prevent_thread_lock=True,
        **{**launch_options(), **more},
    )
    say(f"{page.local_url} shows the page; Ctrl-C ends it")
    if mcp:
        say(f"{page.local_url}gradio_api/mcp/ is the MCP tool (streamable HTTP)")
    page.block_thread()


def launch_options() -> dict[str, Any]:
    """What ``launch`` gets wherever the page runs: its looks, no history of prompts, bounded uploads."""
    from dflash_demo.theme import launch_style

    return {"run_history": False, "footer_links": ["api"], "max_file_size": "20mb", "quiet": True, **launch_style()}
