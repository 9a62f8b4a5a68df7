"""What the visitor's browser shows of a run: one Gradio component, its page, its style and its script."""

from __future__ import annotations

from dflash_demo.view.component import RunView

__all__ = ["RunView"]
