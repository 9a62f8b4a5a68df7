"""The page under test: the run view, a button that hands over the message the test left in the window, and a run that
the server streams. Laid out like the demo, so that the pictures show the view where it will stand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from tests.demo.browser.messages import finished, long_rounds, message, story

UPDATES_A_SECOND = 20


def stream_long_run(tokens: int) -> Iterator[str]:
    """A run of ``tokens`` tokens as the server would send it: a window of eight rounds, then all."""
    rounds = long_rounds(int(tokens))
    for count in range(1, len(rounds) + 1):
        yield json.dumps(message(rounds, run="long", phase="drafting", count=count))
        time.sleep(1 / UPDATES_A_SECOND)
    yield json.dumps(message(rounds, run="long", phase="done", whole=True))


def scripted_page() -> Any:
    import gradio as gr

    from dflash_demo.view import RunView

    with gr.Blocks(title="DFlash", fill_width=True) as blocks:
        gr.Markdown("# DFlash at work\nThe same text, in fewer passes of the model.", elem_id="title")
        with gr.Row():
            gr.Textbox("What is 12 times 7, and why?", label="Prompt", lines=2, scale=5)
            gr.Button("Generate", variant="primary", scale=1)
            gr.Button("Stop", scale=1)
        view = RunView(elem_id="run")
        with gr.Row():
            feed = gr.Button("feed", elem_id="feed", size="sm")
            tokens = gr.Number(800, label="tokens", elem_id="tokens")
            stream = gr.Button("stream", elem_id="stream", size="sm")
        handed = feed.click(None, None, view, js="() => window.nextMessage")
        handed.then(None, None, None, js="() => { window.delivered = window.nextNumber; }")
        stream.click(stream_long_run, tokens, view, show_progress="hidden")
    return blocks


def recorded_page() -> Any:
    """Two views that have a run from the start."""
    import gradio as gr

    from dflash_demo.view import RunView

    with gr.Blocks() as blocks:
        RunView(json.dumps(finished(story())), elem_id="first")
        RunView(json.dumps(finished(story()[:3], run="b")), elem_id="second")
    return blocks
