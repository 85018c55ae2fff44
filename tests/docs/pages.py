"""The code of a page, block by block."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield each block's language ("" where none is given) and text, in the page's order."""
    for found in _BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        yield found[1], found[2]
