"""Each page as it is read: nothing is lost on the site, no line is long, no version is old.

What a Git host shows and the builder drops: a line that begins with `%` is a comment to it, `+++` a
break, `(word)=` a target, `<word>` a tag of HTML. A row's cells beyond the table's head go; a head
of another width than the rule below it makes no table.
"""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.typing import ExtensionMetadata

from bench.record import RESULTS
from bench.tables import DOCUMENTS, filled

ROOT = Path(__file__).parents[2]
LOST = {"myst_line_comment", "myst_block_break", "myst_target", "html_block", "html_inline"}
"""Tokens of the parser whose text no reader sees."""
FOLDED = r"<details>\s*<summary>.*</summary>|</details>"
MEANT = re.compile(rf"\s*(<!--.*-->|</?(br|sup|sub)>|{FOLDED})\s*", re.DOTALL)
"""HTML that a page may have: comments, which nobody sees, tags that the builder knows, and what
folds a part of README, which a Git host draws."""
WIDTH = 120
"""Characters of a line, at most: tables, code, equations and made parts excepted."""
MADE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$|<!-- (bench:\S+) -->.*?<!-- /\2 -->", re.M | re.S)
"""Blocks of code, and what `bench.tables` writes."""


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


def long_lines(text: str) -> list[str]:
    """Return the lines that are longer than WIDTH and could be broken at a space."""
    prose = MADE.sub(lambda made: "\n" * made[0].count("\n"), text)
    return [
        f"line {at}: {line[:WIDTH].strip()}"
        for at, line in enumerate(prose.splitlines(), 1)
        if len(line) > WIDTH and not re.match(r" *(\||\$|!|\[!)", line) and _breaks(line)
    ]


def _breaks(line: str) -> bool:
    """Whether a line has a space outside of code and equations, behind what begins an item."""
    whole = re.sub(r"`[^`]*`|\$[^$]+\$", "code", line)
    return " " in re.sub(r"^ *([-*]|\d+\.) +", "", whole).strip()


def old_versions(text: str) -> list[str]:
    """Return versions that a page names and that are not there: of the project, Flower, Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    released = re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    [flower] = re.findall(r"flwr\[simulation\]>=([\d.]+)", " ".join(project["dependencies"]))
    known = {
        r"\b[Vv]ersion (\d+\.\d+\.\d+)": {project["version"], *released},
        r"\bFlower (\d+\.\d+)": {flower},
        r"\bPython (3\.\d+) or newer": {project["requires-python"].removeprefix(">=")},
    }
    named = ((one, right) for rule, right in known.items() for one in re.finditer(rule, text))
    return [one[0] for one, right in named if not right & {*one.groups()}]


def old_tables() -> list[str]:
    """Return the pages whose tables are not those of their results' files."""
    texts = {page: page.read_text(encoding="utf-8") for page in DOCUMENTS}
    made = {
        page: filled(texts[page], RESULTS, os.path.relpath(RESULTS, page.parent)) for page in texts
    }
    return [page.name for page in texts if made[page] != texts[page]]


def _check(app: Sphinx, page: str, source: list[str]) -> None:
    if found := lost(source[0]):
        raise SphinxError(f"{page}.md: lost on the site: {found[0]}")
    if found := old_versions(source[0]):
        raise SphinxError(f"{page}.md: names what is not there: {found[0]}")


def _check_tables(app: Sphinx) -> None:
    if found := old_tables():
        raise SphinxError(f"{found[0]}: not its results' tables: python -m bench.tables")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Look at each page as it is read, and at the tables before."""
    app.connect("builder-inited", _check_tables)
    app.connect("source-read", _check)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
