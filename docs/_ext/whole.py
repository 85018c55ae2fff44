"""Nothing that a page says is lost on the site: looked for in each page as it is read.

What a Git host shows and the builder drops: a line that begins with `%` is a comment to it, `+++` a
break, `(word)=` a target, `<word>` a tag of HTML. A row's cells beyond the table's head go; a head
of another width than the rule below it makes no table.
"""

import re
from collections.abc import Iterator

from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.typing import ExtensionMetadata

LOST = {"myst_line_comment", "myst_block_break", "myst_target", "html_block", "html_inline"}
"""Tokens of the parser whose text no reader sees."""
MEANT = re.compile(r"\s*(<!--.*-->|</?(br|sup|sub)>)\s*", re.DOTALL)
"""HTML that a page may have: comments, which nobody is to see, and tags that the builder knows."""


def lost(text: str) -> list[str]:
    """Return what is lost of a page in Markdown: the line's number and its text."""
    parser = create_md_parser(MdParserConfig(enable_extensions={"dollarmath"}), RendererHTML)
    lines = text.splitlines()
    return [f"line {at + 1}: {lines[at].strip()}" for at in _places(parser.parse(text), lines)]


def _places(tokens: list[Token], lines: list[str]) -> Iterator[int]:
    """Yield the numbers of the lines, from 0, that are lost in whole or in part."""
    for token in tokens:
        start, end = token.map or (0, 0)
        parts = [token, *(token.children or ())]
        if any(p.type in LOST and not MEANT.fullmatch(p.content) for p in parts):
            yield start
        if token.type == "paragraph_open":
            yield from (at for at in range(start, end) if lines[at].lstrip().startswith("|"))
        if token.type == "table_open":
            width = _width(lines[start])
            yield from (at for at in range(start, end) if _width(lines[at]) != width)


def _width(row: str) -> int:
    """Return how many cells a row has. In code too a bar ends a cell, unless it is escaped."""
    return len(re.findall(r"(?<!\\)\|", row.strip().strip("|").replace(r"\|", ""))) + 1


def _check(app: Sphinx, page: str, source: list[str]) -> None:
    if found := lost(source[0]):
        raise SphinxError(f"{page}.md: lost on the site: {found[0]}")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Look at each page as it is read."""
    app.connect("source-read", _check)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
