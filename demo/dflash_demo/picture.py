"""``python -m dflash_demo.picture``: the page's picture, and a short animation of a replay, from a run that was made.

In: a run as the page offers it for download; the recorded one by default. Needs playwright, a Chromium and pillow.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_hf import DFlashError
from dflash_hf.bench.pair import PairSource

if TYPE_CHECKING:
    from PIL.Image import Image
    from playwright.sync_api import Page

__all__ = ["animate", "durations", "open_page", "take"]

_VIEWPORT = {"width": 1280, "height": 900}
_SPEED_UP = 2.0  # the animation against the run's own clock
_LAST_FRAME_MS = 3000


@contextmanager
def open_page(message: dict[str, Any], theme: str) -> Iterator[Page]:
    """The demo in a headless browser, showing this run, without any pair.

    Raises:
        DFlashError: no Chromium is installed.
    """
    from playwright.sync_api import sync_playwright

    from dflash_demo.page import build
    from dflash_demo.pairs import Pairs
    from dflash_demo.serve import launch_options

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise DFlashError("no chromium is found on the path: install it to make pictures")
    demo = build(Pairs(PairSource()), shown=message)
    demo.launch(server_name="127.0.0.1", prevent_thread_lock=True, **launch_options())
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport=_VIEWPORT, device_scale_factor=1.5)  # type: ignore[arg-type]
            page.goto(f"{demo.local_url}?__theme={theme}")
            page.wait_for_selector('[data-part="rows"] .tok')
            yield page
            browser.close()
    finally:
        demo.close()


def take(page: Page) -> Image:
    """The run's part of the page as it is now."""
    from PIL import Image

    return Image.open(io.BytesIO(page.locator(".dflash-run .dv").screenshot())).convert("RGB")


def animate(page: Page, width: int) -> list[Image]:
    """A frame a round, each as large as the largest."""
    slider = page.locator('[data-part="slider"]')
    frames = []
    for number in range(int(slider.get_attribute("max") or 0) + 1):
        slider.evaluate("(it, n) => { it.value = n; it.dispatchEvent(new Event('input', { bubbles: true })); }", number)
        page.wait_for_timeout(60)
        frame = take(page)
        frames.append(frame.resize((width, round(frame.height * width / frame.width))))
    height = max(frame.height for frame in frames)
    return [_padded(frame, height) for frame in frames]


def _padded(frame: Image, height: int) -> Image:
    from PIL import Image

    whole = Image.new("RGB", (frame.width, height), frame.getpixel((0, 0)))
    whole.paste(frame)
    return whole


def durations(message: dict[str, Any]) -> list[int]:
    """How long each frame is shown, in milliseconds: the run's own pace, ``_SPEED_UP`` times as fast."""
    paces = [max(40, round(float(item["ms"][3]) / _SPEED_UP)) for item in message["rounds"]]
    return [*paces[1:], _LAST_FRAME_MS]


def main(
    picture: Annotated[Path, typer.Argument(help="Where the picture goes (.png).")],
    animation: Annotated[Path | None, typer.Option(help="Also a replay, as a GIF.")] = None,
    run: Annotated[Path | None, typer.Option(help="A downloaded run; default: the recorded one.")] = None,
    theme: Annotated[str, typer.Option(help="light or dark.")] = "light",
    width: Annotated[int, typer.Option(help="Of the animation, in pixels.")] = 720,
) -> None:
    """Make the pictures of the README."""
    from PIL.Image import Dither

    from dflash_demo.page import recorded_run
    from dflash_demo.saved import read_run

    message = recorded_run() if run is None else read_run(run, None)
    with open_page(message, theme) as page:
        take(page).save(picture, optimize=True)
        typer.echo(f"{picture}: {picture.stat().st_size / 1e3:.0f} kB")
        if animation is not None:
            frames = [frame.quantize(64, dither=Dither.NONE) for frame in animate(page, width)]
            times = durations(message)[: len(frames)]
            frames[0].save(animation, save_all=True, append_images=frames[1:], duration=times, loop=0)
            typer.echo(f"{animation}: {len(frames)} frames, {animation.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    typer.run(main)
