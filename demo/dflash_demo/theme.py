"""How the page around the run looks. Out: what Gradio's ``launch`` takes for it, a theme and a style sheet.

System fonts only: the page fetches nothing from elsewhere.
"""

from __future__ import annotations

from typing import Any

__all__ = ["launch_style"]

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "Liberation Sans", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

PAGE_STYLE = """
.gradio-container { width: 100% !important; max-width: 1480px !important; margin-inline: auto !important; }
.gradio-container > main, .gradio-container .main { padding-inline: clamp(10px, 2.4vw, 40px) !important; }
.gradio-container { --layout-gap: 14px; }
#title h1 { font-size: clamp(20px, 2.4vw, 28px); font-weight: 700; letter-spacing: -0.02em; margin: 0 0 2px; }
#title p { color: var(--body-text-color-subdued); font-size: 15px; margin: 0; max-width: 70ch; }
.html-container.pending:has(.dv) { opacity: 1 !important; }
.block.dflash-run { overflow: visible !important; }
.block.dflash-run > .html-container { padding: 0 !important; }
.gradio-container button:focus-visible, .gradio-container summary:focus-visible,
.gradio-container a:focus-visible { outline: 2px solid var(--color-accent); outline-offset: 2px; }
.gradio-container textarea:focus-visible, .gradio-container input:focus-visible {
  outline: 2px solid var(--color-accent); outline-offset: 0; }
.gradio-container input[type="checkbox"] { accent-color: var(--color-accent); }
@media (max-width: 640px) {
  .gradio-container .row { flex-wrap: wrap; }
}
@media (prefers-reduced-motion: reduce) {
  .gradio-container * { transition: none !important; animation-duration: 1ms !important; }
}
"""


def launch_style() -> dict[str, Any]:
    """``theme`` and ``css`` for ``launch``."""
    return {"theme": _theme(), "css": PAGE_STYLE}


def _theme() -> Any:
    """A quiet theme for light and dark: near-white and near-black grounds, hairlines, one blue."""
    from gradio.themes import Base, Color

    blue = Color("#eef6fb", "#d9eaf6", "#b3d6ee", "#85bce2", "#56a3d6", "#1f86c4", "#0072b2", "#005d92", "#014a74",
                 "#08395a", "#0a2b44")  # fmt: skip
    grey = Color("#f8fafb", "#f2f5f7", "#dfe5eb", "#c6cfd8", "#9fadba", "#74828f", "#55616e", "#3d4854", "#26313c",
                 "#161e27", "#0b1016")  # fmt: skip
    theme = Base(primary_hue=blue, secondary_hue=blue, neutral_hue=grey, font=SANS, font_mono=MONO)
    return theme.set(
        body_background_fill="#f8fafb",
        body_background_fill_dark="#0b1016",
        body_text_color="#16202b",
        body_text_color_dark="#e7edf3",
        body_text_color_subdued="#55616e",
        body_text_color_subdued_dark="#9fadba",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#10161d",
        background_fill_secondary="#f2f5f7",
        background_fill_secondary_dark="#161e27",
        border_color_primary="#dfe5eb",
        border_color_primary_dark="#26313c",
        block_background_fill="#ffffff",
        block_background_fill_dark="#10161d",
        block_border_width="1px",
        block_border_color="#dfe5eb",
        block_border_color_dark="#26313c",
        block_shadow="none",
        block_shadow_dark="none",
        block_radius="12px",
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
        block_label_text_color="#55616e",
        block_label_text_color_dark="#9fadba",
        block_title_text_color="#3d4854",
        block_title_text_color_dark="#c6cfd8",
        block_title_text_weight="600",
        input_background_fill="#ffffff",
        input_background_fill_dark="#161e27",
        input_border_width="1px",
        input_border_color="#c6cfd8",
        input_border_color_dark="#3d4854",
        input_placeholder_color="#74828f",
        input_placeholder_color_dark="#8d9aa7",
        input_radius="8px",
        button_large_radius="10px",
        button_small_radius="8px",
        button_primary_background_fill="#0072b2",
        button_primary_background_fill_hover="#005d92",
        button_primary_background_fill_dark="#0072b2",
        button_primary_background_fill_hover_dark="#1f86c4",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
        button_secondary_background_fill="#ffffff",
        button_secondary_background_fill_hover="#f2f5f7",
        button_secondary_background_fill_dark="#161e27",
        button_secondary_background_fill_hover_dark="#26313c",
        button_secondary_border_color="#c6cfd8",
        button_secondary_border_color_dark="#3d4854",
        color_accent="#0072b2",
        link_text_color="#005d92",
        link_text_color_dark="#85bce2",
    )
