"""No page loads anything from elsewhere: looked for in every page when the build is done."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.typing import ExtensionMetadata

LOADS = re.compile(
    r"<(?:script|img|iframe|source|audio|video|embed|object|link(?![^>]*rel=\"canonical\"))\b"
    r"[^>]*\b(?:src|href|srcset|data)=\"(?:https?:)?//|@import|url\(\s*['\"]?(?:https?:)?//"
)
"""A page's or style sheet's order to fetch from another machine; a link to click is none."""


def loading(folder: Path) -> list[str]:
    """Return the pages and style sheets below a folder that fetch from another machine."""
    files = (file for kind in ("*.html", "*.css") for file in sorted(folder.rglob(kind)))
    return [str(file) for file in files if LOADS.search(file.read_text(encoding="utf-8"))]


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is None and (found := loading(Path(app.outdir))):
        raise SphinxError(f"{found[0]}: loads from another machine; bring what it loads along")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Look when the build is done."""
    app.connect("build-finished", _check)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
