"""Every link of a page leads somewhere, read on a Git host as on the site."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings of a page, as Git hosts and MyST name them."""
    text = FENCE.sub("", page.read_text())
    found = re.findall(r"^#+ +(.+?) *$", text, flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found)
    return frozenset(plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(re.sub(r"`[^`\n]+`", "code", FENCE.sub("", page.read_text()))):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), f"{page.name}: {target}: no such file"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}: no such heading"


def test_every_page_is_in_the_sites_contents():
    """Sphinx says so too; this takes no build."""
    listed = re.findall(r"^([\w/]+)$", (ROOT / "docs/index.md").read_text(), flags=re.MULTILINE)
    docs = ROOT / "docs"
    pages = {str(p.relative_to(docs).with_suffix("")) for p in PAGES if docs in p.parents}
    assert pages == {*listed, "index"}
