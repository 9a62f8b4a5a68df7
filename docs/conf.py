"""Sphinx settings: Markdown pages (MyST), API pages from docstrings (Google style), the furo theme."""

import dflash_hf

project = "dflash-hf"
author = "The dflash-hf authors"
copyright = "2026, The dflash-hf authors"
version = release = dflash_hf.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
nitpicky = False  # docstrings name types of torch and transformers, whose pages are not fetched to be linked

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"dflash-hf {version}"
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
