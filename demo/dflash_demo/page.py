"""The page: its parts, and what each button does. Gradio is imported here and in ``view``, nowhere else."""

from __future__ import annotations

import atexit
import html
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import gradio as gr

from dflash_demo.api import answering, asking
from dflash_demo.examples import EXAMPLES
from dflash_demo.pairs import Pairs
from dflash_demo.saved import read_run
from dflash_demo.settings import CAPS, THINKING, Limits, Request
from dflash_demo.story import Story
from dflash_demo.telling import Tell, ended, follow, teller
from dflash_demo.view.component import RunView
from dflash_demo.visitors import Ticket, Visitors
from dflash_hf import DFlashError, OptionsError
from dflash_hf.bench.pair import DTYPES

__all__ = ["build"]

_QUEUE = {"concurrency_limit": 1, "concurrency_id": "pair"}  # one worker: the pair answers one visitor at a time
_WAITING_RUNS = 16


def build(
    pairs: Pairs,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    *,
    gpu: Callable[[Any], Any] = lambda tell: tell,
    shown: dict[str, Any] | None = None,
    mcp: bool = False,
) -> gr.Blocks:
    """The page over one pair.

    Args:
        pairs: where the pair comes from.
        limits: of each run.
        gpu: wraps the generator that runs a ticket; ZeroGPU's decorator, on such a Space.
        shown: the message to begin with; None is the run that was recorded for it.
        mcp: also have the tool ``ask`` for agents.
    """
    visitors = Visitors()
    atexit.register(visitors.stop_all)
    with gr.Blocks(title="DFlash at work", analytics_enabled=False, delete_cache=(600, 3600), fill_width=True) as page:
        gr.Markdown(
            "# DFlash at work\nA small drafter proposes a whole block of tokens at once; the model checks them all in "
            "one pass and keeps those it would have said itself. Same text, fewer passes.",
            elem_id="title",
        )
        with gr.Row(elem_id="ask"):
            prompt = gr.Textbox(label="Prompt", value=EXAMPLES[0].prompt, lines=2, max_lines=12, scale=5,
                                elem_id="prompt")  # fmt: skip
            with gr.Column(scale=1, min_width=140):
                generate = gr.Button("Generate", variant="primary", elem_id="generate")
                stop = gr.Button("Stop", elem_id="stop")
        settings = _settings(limits)
        view = RunView(value=json.dumps(shown or recorded_run()), elem_id="run")
        with gr.Row(elem_id="files"):
            download = gr.DownloadButton("Download this run", interactive=False, size="sm", elem_id="download")
            upload = gr.UploadButton("Load a run or trace", file_types=[".json"], size="sm", elem_id="upload")
        gr.Examples([[example.prompt] for example in EXAMPLES], inputs=[prompt], label="Try",
                    example_labels=[example.label for example in EXAMPLES])  # fmt: skip
        tell: Tell = gpu(teller(pairs, limits))
        _wire(pairs, visitors, limits, tell, [prompt, *settings], generate, stop, view, download, upload)
        page.unload(_leaving(visitors))
        endpoint = answering(tell, visitors)
        gr.api(endpoint, api_name="generate", **_QUEUE)
        if mcp:
            gr.api(asking(endpoint), api_name="ask", **_QUEUE)
    page.queue(max_size=_WAITING_RUNS, default_concurrency_limit=8)
    return page


def recorded_run() -> dict[str, Any]:
    """What the page shows before anything was asked: a run that was really made, as a visitor would load it."""
    with resources.as_file(resources.files("dflash_demo") / "recorded.json") as path:
        return read_run(path, None)


def _settings(limits: Limits) -> list[Any]:
    with gr.Accordion("Settings", open=False, elem_id="settings"):
        with gr.Row():
            tokens = gr.Slider(1, limits.new_tokens, value=min(192, limits.new_tokens), step=1, label="Maximum tokens")
            temperature = gr.Slider(0, 2, value=0, step=0.05, label="Temperature", info="0: always the likeliest token")
            top_p = gr.Slider(0.05, 1, value=1, step=0.05, label="Top-p")
        with gr.Row():
            cap = gr.Dropdown(list(CAPS), value=next(iter(CAPS)), label="Draft cap", info="most drafted in a round")
            seed = gr.Number(0, label="Seed", precision=0, minimum=0)
            dtype = gr.Dropdown(list(DTYPES), value="auto", label="dtype", info="another one loads the pair anew")
            thinking = gr.Dropdown(list(THINKING), value=next(iter(THINKING)), label="Thinking")
        with gr.Row():
            plain = gr.Checkbox(True, label="Run plain too", info="the same prompt without the drafter, to compare")
            probabilities = gr.Checkbox(
                True, label="Record probabilities", info="the target's p and the drafter's q; costs a little time"
            )
    return [tokens, temperature, top_p, seed, cap, dtype, plain, thinking, probabilities]


def _wire(
    pairs: Pairs, visitors: Visitors, limits: Limits, tell: Tell, asked: list[Any], generate: Any, stop: Any,
    view: Any, download: Any, upload: Any,
) -> None:  # fmt: skip
    def begin(request: gr.Request, *values: Any) -> tuple[str, Any]:
        cleared, wanted = gr.update(value=None, interactive=False), _request(values)
        try:
            wanted.checked(limits)
        except OptionsError as error:  # before a prompt of any length is sent back
            visitors.leave(_visitor(request))
            return json.dumps(_refused(error)), cleared
        ticket = Ticket(wanted)
        before, story = visitors.begin(_visitor(request), ticket), Story.of(ticket)
        if before:
            story.say("info", f"{before} {'run is' if before == 1 else 'runs are'} before yours.")
        elif pairs.loaded is None:
            story.say("info", "The pair is being loaded ...")
        return json.dumps(story.message()), cleared

    def show(request: gr.Request) -> Iterator[tuple[Any, Any]]:
        for kind, body in follow(tell, visitors, _visitor(request)):
            if kind == "message":
                yield json.dumps(body), gr.skip()
            elif body is not None:
                with _file_of(body) as path:  # Gradio copies it, for this visitor, before it asks for more
                    yield gr.skip(), gr.DownloadButton(value=str(path), interactive=True)
        yield gr.skip(), gr.skip()  # Gradio sends a generator's last word once more at its end

    def refuse(request: gr.Request) -> Any:
        ticket = visitors.leave(_visitor(request))
        return _over(ticket, "failed", "error", "Too many runs are waiting. Try again in a minute.")

    def halt(request: gr.Request) -> Any:
        return _over(visitors.stop(_visitor(request)), "stopped", "info", "Stopped before its turn.")

    def load(path: str, request: gr.Request) -> tuple[Any, Any]:
        try:
            message = read_run(path, pairs.loaded)
        except DFlashError as error:
            gr.Warning(html.escape(str(error)), title="This file cannot be shown", duration=None)
            return gr.skip(), gr.skip()
        visitors.leave(_visitor(request))
        return json.dumps(message), gr.update(value=None, interactive=False)

    quietly = {"show_progress": "hidden", "api_visibility": "private"}
    begun = gr.on([generate.click, asked[0].submit], begin, asked, [view, download], queue=False, **quietly)
    # A visitor who asks again during a run: "always_last" begins the next one when the first has ended.
    shown = begun.then(show, None, [view, download], trigger_mode="always_last", **_QUEUE, **quietly)
    shown.failure(refuse, None, view, queue=False, **quietly)
    stop.click(halt, None, view, queue=False, **quietly)
    upload.upload(load, upload, [view, download], **quietly)


def _over(ticket: Ticket | None, phase: str, kind: str, text: str) -> Any:
    """For the view: a run that never began, and why; nothing where there is none."""
    return gr.skip() if ticket is None else json.dumps(ended(Story.of(ticket).message(), phase, kind, text))


def _refused(error: OptionsError) -> dict[str, Any]:
    """What the view shows of a run that was not asked for as it may be."""
    ticket = Ticket(Request(""))
    ticket.stop()
    return ended(Story.of(ticket).message(), "failed", "error", str(error))


def _request(values: tuple[Any, ...]) -> Request:
    prompt, tokens, temperature, top_p, seed, cap, dtype, plain, thinking, probabilities = values
    return Request(
        prompt=prompt or "",
        max_new_tokens=tokens,
        temperature=temperature,
        top_p=top_p,
        seed=0 if seed is None else seed,
        draft_cap=CAPS[cap],
        dtype=dtype,
        plain=plain,
        thinking=THINKING[thinking],
        probabilities=probabilities,
    )


def _leaving(visitors: Visitors) -> Callable[[gr.Request], None]:
    def leave(request: gr.Request) -> None:
        visitors.leave(_visitor(request))

    return leave


def _visitor(request: gr.Request) -> str:
    return str(request.session_hash)


@contextmanager
def _file_of(body: dict[str, Any]) -> Iterator[Path]:
    """A run as a file, for as long as it takes to hand it over."""
    with tempfile.TemporaryDirectory(prefix="dflash-demo-") as folder:
        path = Path(folder) / "dflash-run.json"
        path.write_text(json.dumps(body, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        yield path
