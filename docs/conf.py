"""Sphinx: `python3 dev.py docs` builds the pages into docs/_build/html, where warnings are errors."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

project = "django-pgbus"
author = "django-pgbus contributors"
copyright = "django-pgbus contributors"
release = re.findall(r'^__version__ = "(.*)"', (ROOT / "django_pgbus" / "__init__.py").read_text(), re.MULTILINE)[0]
version = release

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "architecture/_*.md", "operations/_*.md"]
templates_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"django-pgbus {release}"
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
html_show_sourcelink = False
