"""Every link of a page leads somewhere, read on a Git host as on the site."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, prose

LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings of a page, as Git hosts and MyST name them."""
    found = re.findall(r"^#+ +(.+?) *$", prose(page), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found)
    return frozenset(plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(re.sub(r"`[^`\n]+`", "code", prose(page))):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), f"{page.name}: {target}: no such file"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}: no such heading"
