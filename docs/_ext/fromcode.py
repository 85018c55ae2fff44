"""Directives that show what `reference` makes, and docstrings in plain text for autodoc."""

import re
from collections.abc import Callable
from typing import Any

import reference
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata


class _Made(SphinxDirective):
    """Shows the Markdown that a function makes."""

    text: Callable[[], str]

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(type(self).text(), allow_section_headings=True)


def plain(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring's lines, which are plain text with `code`, into reStructuredText."""
    for number, line in enumerate(lines):
        parts = re.split("`+([^`]+)`+", line)
        parts[::2] = [re.sub(r"([\\*|_])", r"\\\1", part) for part in parts[::2]]
        parts[1::2] = [f"``{code}``" for code in parts[1::2]]
        lines[number] = "".join(parts)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Offer a directive for each page of `reference`."""
    for page in (reference.settings, reference.networks, reference.methods, reference.commands):
        app.add_directive(f"all-{page.__name__}", type("Made", (_Made,), {"text": page}))
    app.connect("autodoc-process-docstring", plain)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
