"""The code of a page, block by block."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^ *```([^\n`]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def blocks(page: str | Path) -> Iterator[tuple[str, str]]:
    """Yield each block's language ("" where none is given) and text, in the page's order."""
    for found in _BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        yield found[1], found[2]


def prose(page: Path) -> str:
    """Return a page without its blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))
